"""Two photos of one pair in host memory, and crops of them: what a pair that is read from disk needs.

`DevicePhotos` builds pyramids once and crops from them many times, on any device. Photos that are read for
one pair are cropped once, so that only the pyramid level that is needed is made, and OpenCV crops from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_LEVELS = 4  # full size, and 1/2, 1/4, 1/8, as in `DevicePhotos`


class HostPhotos:
    """A few photos of any size, in host memory."""

    def __init__(self, photos: Sequence[npt.NDArray[np.uint8]]) -> None:
        """`photos`: arrays (height, width, 3) RGB."""
        self._photos = list(photos)
        self.sizes = torch.tensor([[photo.shape[1], photo.shape[0]] for photo in photos])  # (N, 2)

    def original_or_copy(self, index: Tensor, uniform: Tensor) -> Tensor:
        """The photos themselves: there are no changed copies."""
        return index

    def crop(self, index: Tensor, source_from_crop: Tensor, size: int) -> Tensor:
        """Crops (B, 3, size, size) in [0, 1] of the photos `index` (B,).

        `source_from_crop` (B, 2, 3) maps crop pixels to photo pixels. Pixels whose source is outside the
        photo are black.
        """
        matrices = source_from_crop.double().numpy()
        crops = [
            self._crop(self._photos[k], matrix, size)
            for k, matrix in zip(index.tolist(), matrices, strict=True)
        ]
        return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous().float() / 255.0

    @staticmethod
    def _crop(
        photo: npt.NDArray[np.uint8], matrix: npt.NDArray[np.float64], size: int
    ) -> npt.NDArray[np.uint8]:
        """One crop (size, size, 3); `matrix` (2, 3) leads to the photo."""
        shrink = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
        level = int(np.clip(np.round(np.log2(max(shrink, 1e-6))), 0, _LEVELS - 1))
        factor = 2**level
        height, width = photo.shape[:2]
        if level and min(height, width) >= factor:
            # An odd last row or column is dropped, so that steps are exact.
            whole = photo[: height // factor * factor, : width // factor * factor]
            photo = cv2.resize(whole, (width // factor, height // factor), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
            matrix = matrix / factor
            matrix[:, 2] += 0.5 / factor - 0.5
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        return np.asarray(cv2.warpAffine(photo, matrix, (size, size), flags=flags), dtype=np.uint8)
