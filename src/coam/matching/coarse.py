"""What two images have in common by their coarse descriptors alone: a cheap look, before the decoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coam.geometry.coordinates import cell_centres
from coam.matching.mutual import dual_softmax_nearest
from coam.tensors import as_array

COARSE_STRIDE = 16  # pixels between coarse descriptors
LEAST_PROBABILITY = 0.01  # below, a match does not count: hundreds of them would not make one right one


@dataclass(frozen=True)
class CoarseMatches:
    """Cells of two images that find each other."""

    points0: npt.NDArray[np.float64]  # (K, 2) centres of the cells, in pixels of image 0
    points1: npt.NDArray[np.float64]  # (K, 2)
    probability: npt.NDArray[
        np.float64
    ]  # (K,) by the dual softmax; its sum is the expected number of right ones

    def select(self, which: npt.NDArray[np.bool_]) -> CoarseMatches:
        """Those for which `which` (K,) is true."""
        return CoarseMatches(self.points0[which], self.points1[which], self.probability[which])


def coarse_matches(coarse0: Tensor, coarse1: Tensor, logit_scale: float) -> CoarseMatches:
    """Mutual matches of coarse descriptors (D, H, W) of two images."""
    mutual = dual_softmax_nearest(coarse0.flatten(1).t(), coarse1.flatten(1).t(), logit_scale)
    assert mutual.probability is not None
    probability = as_array(mutual.probability).astype(np.float64)
    counts = probability >= LEAST_PROBABILITY
    points0, points1 = (
        as_array(cell_centres(coarse.shape[2], coarse.shape[1], COARSE_STRIDE, coarse.device)[index])
        for coarse, index in ((coarse0, mutual.index0), (coarse1, mutual.index1))
    )
    return CoarseMatches(
        points0[counts].astype(np.float64), points1[counts].astype(np.float64), probability[counts]
    )
