"""Masks: which pixels of a photo may be used."""

from __future__ import annotations

import os
import sys
from typing import IO, TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ImageError
from coam.images.load import load_image
from coam.types import Size

if TYPE_CHECKING:
    from torch import Tensor

Mask = npt.NDArray[np.bool_]  # (H, W)
MaskLike: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes] | Image.Image | npt.NDArray[Any] | Tensor"


def load_mask(source: MaskLike, size: Size, label: str = "the mask") -> Mask:
    """Usable pixels (H, W), True where `source` is not zero, of a photo of `size` (width, height).

    `source`: an array or tensor (H, W), (H, W, C), (1, H, W) or (1, 1, H, W) of any type, or whatever
    `load_image` reads: a pixel is usable unless it is black. It must have the photo's size.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        usable = np.asarray((source.detach() != 0).cpu())
        while usable.ndim > 2 and usable.shape[0] == 1:
            usable = usable[0]
    elif isinstance(source, np.ndarray):
        usable = np.asarray(source != 0)
    else:
        label = os.fspath(source) if isinstance(source, str | os.PathLike) else label
        usable = np.asarray(load_image(source).rgb != 0)
    if usable.ndim == 3:
        usable = np.asarray(usable.any(axis=2))
    if usable.shape != (size[1], size[0]):
        shape = " x ".join(str(side) for side in reversed(usable.shape))
        raise ImageError(
            f"{label}: is not of the size of its photo, but {shape}; make it {size[0]} x {size[1]}"
        )
    return usable


@overload
def usable_at(mask: Mask, points: npt.NDArray[np.floating[Any]]) -> Mask: ...
@overload
def usable_at(mask: Tensor, points: Tensor) -> Tensor: ...
def usable_at(mask: Any, points: Any) -> Any:
    """Whether the pixels of mask (H, W) nearest to points (N, 2) are usable (N,); arrays or tensors.

    Beyond the photo its nearest pixel counts.
    """
    height, width = mask.shape
    x, y = points[:, 0].round().clip(0, width - 1), points[:, 1].round().clip(0, height - 1)
    if isinstance(points, np.ndarray):
        return mask[y.astype(np.int64), x.astype(np.int64)]
    return mask[y.long(), x.long()]
