"""Pictures. Functions take arrays or results and return PIL images or HTML text; nothing opens a window."""

from coam.viz.matches import draw_matches, spread_subset

__all__ = ["draw_matches", "spread_subset"]
