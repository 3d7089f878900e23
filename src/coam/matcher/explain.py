"""Why a point is matched where it is: attention, similarity and distinctiveness maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.matching.grid import sample_map
from coam.models.network import Network
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import MULTIPLE
from coam.tensors import as_array
from coam.types import FloatArray

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Explanation:
    """Why a point of photo 0 is matched where it is: maps over photo 1, and both score maps."""

    image0: npt.NDArray[np.uint8]  # (H, W, 3)
    image1: npt.NDArray[np.uint8]
    point: tuple[float, float]  # in photo 0
    best: tuple[float, float]  # the answer in photo 1: most similar descriptor, whatever its distinctiveness
    similarity: FloatArray  # (h, w) c_kl of the point over photo 1
    attention: dict[str, FloatArray]  # by level, (h, w) over photo 1, sums to 1
    distinctiveness0: FloatArray  # (h, w) over photo 0
    distinctiveness1: FloatArray  # (h, w) over photo 1

    def __repr__(self) -> str:
        (x, y), (u, v) = self.point, self.best
        return f"Explanation(({x:.1f}, {y:.1f}) of photo 0 is ({u:.1f}, {v:.1f}) of photo 1; see draw())"

    def draw(self, **options: Any) -> Image.Image:
        """Similarity and attention maps; options as in `coam.viz.draw_explanation`."""
        from coam.viz import draw_explanation

        return draw_explanation(self, **options)


def similarity_map(dense0: DenseDescriptors, dense1: DenseDescriptors, point: Tensor) -> FloatArray:
    """c_kl (h, w) of eq. 2 over photo 1 for one point (2,) of photo 0, in resized pixels."""
    query = sample_map(dense0.descriptors, point[None, None], dense0.stride, normalise=True)[0, 0]
    own_score = sample_map(dense0.score, point[None, None], dense0.stride)[0, 0, 0]
    similarity = torch.einsum("d,dhw->hw", query, dense1.descriptors[0]) * dense1.score[0, 0]
    return as_array(similarity * own_score)


def attention_of_point(
    network: Network, a: EncodedImage, b: EncodedImage, point: Tensor
) -> dict[str, FloatArray]:
    """Attention of the cell that holds `point` (2,), resized pixels, over photo 1, by level."""
    maps = {}
    for stride, attention in network.attention_maps(a, b).items():
        rows, columns = attention.shape[1:3]  # of the padded image, whatever the size at which images meet
        (height, width) = (math.ceil(side / MULTIPLE) * MULTIPLE for side in a.size)
        column = min(int((float(point[0]) + 0.5) * columns / width), columns - 1)
        row = min(int((float(point[1]) + 0.5) * rows / height), rows - 1)
        maps[f"stride {stride}"] = as_array(attention[0, row, column])
    return maps
