"""Matching on tensors: positions on a grid, exact mutual nearest neighbours, sub-pixel refinement.

This room knows nothing of images or models.
"""

from coam.matching.grid import grid_points, sample_map
from coam.matching.mutual import (
    MutualMatches,
    NearestMatches,
    dual_softmax_nearest,
    fold_score,
    mutual_nearest,
    nearest,
    top_k,
)
from coam.matching.refine import RefinedPoints, refine_paper, refine_quadratic, refine_softargmax, seek

__all__ = [
    "MutualMatches",
    "NearestMatches",
    "RefinedPoints",
    "dual_softmax_nearest",
    "fold_score",
    "grid_points",
    "mutual_nearest",
    "nearest",
    "refine_paper",
    "refine_quadratic",
    "refine_softargmax",
    "sample_map",
    "seek",
    "top_k",
]
