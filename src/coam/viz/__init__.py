"""Pictures. Functions take arrays or results and return PIL images, bytes or HTML; nothing opens a window."""

from coam.viz.alignment import AlignedPair, align, draw_aligned, flicker_animation, flicker_frames
from coam.viz.attention import draw_explanation
from coam.viz.curves import draw_accuracy_curves, draw_curves
from coam.viz.maps import draw_distinctiveness, draw_heatmap
from coam.viz.match_page import match_page
from coam.viz.matches import draw_matches, spread_subset
from coam.viz.scene import SceneCamera, draw_scene, scene_page

__all__ = [
    "AlignedPair",
    "SceneCamera",
    "align",
    "draw_accuracy_curves",
    "draw_aligned",
    "draw_curves",
    "draw_distinctiveness",
    "draw_explanation",
    "draw_heatmap",
    "draw_matches",
    "draw_scene",
    "flicker_animation",
    "flicker_frames",
    "match_page",
    "scene_page",
    "spread_subset",
]
