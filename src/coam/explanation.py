"""Why a point is matched where it is, as maps that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
