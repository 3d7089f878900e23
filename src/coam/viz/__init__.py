"""Visualization: functions of arrays or results to PIL images, bytes or HTML; no window is opened."""

from coam.viz.curves import draw_curves
from coam.viz.heatmaps import draw_distinctiveness, draw_explanation
from coam.viz.match_page import match_page
from coam.viz.matches import draw_matches, spread_subset
from coam.viz.overlay import AlignedPair, align, draw_aligned, flicker_animation, flicker_frames
from coam.viz.scene import SceneCamera, scene_page

__all__ = [
    "AlignedPair",
    "SceneCamera",
    "align",
    "draw_aligned",
    "draw_curves",
    "draw_distinctiveness",
    "draw_explanation",
    "draw_matches",
    "flicker_animation",
    "flicker_frames",
    "match_page",
    "scene_page",
    "spread_subset",
]
