"""Decoded photos and depth maps in small files, so that a training run decodes each photo once.

A photo of a large collection is decoded again each time one of its pairs is drawn, and decoding takes most of
the time of a pair. Here the first read leaves the photo (uint8) and its depth (float16 times a scale) in the
size that training needs; later reads take a millisecond. The files are worth nothing without the collection
and can be removed at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coam.errors import ConfigError, DataError
from coam.store.tensor_files import read_safetensors, write_safetensors

Photo = npt.NDArray[np.uint8]
Depth = npt.NDArray[np.float32]
_LARGEST_HALF = 60_000.0  # float16 ends at 65,504


@dataclass(frozen=True)
class DecodedView:
    """A photo (H, W, 3) and its depth map (H, W), 0 where unknown, in the size of the photo."""

    photo: Photo
    depth: Depth
    scale: tuple[float, float] = (1.0, 1.0)  # of its size over that of the collection's depth map, in x and y


def shrink(view: DecodedView, side: int) -> DecodedView:
    """The view with a longer side of at most `side` pixels; depth is taken from the nearest pixel."""
    height, width = view.depth.shape
    factor = side / max(height, width)
    if factor >= 1:
        return view
    from PIL import Image

    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    photo = Image.fromarray(view.photo).resize(size, Image.Resampling.LANCZOS)
    # A mean of depths on both sides of an edge would be the depth of nothing.
    column = ((np.arange(size[0]) + 0.5) * width / size[0]).astype(int)
    row = ((np.arange(size[1]) + 0.5) * height / size[1]).astype(int)
    scale = (size[0] / width, size[1] / height)
    return DecodedView(np.asarray(photo), np.ascontiguousarray(view.depth[row][:, column]), scale)


class ViewCache:
    """Views by name, decoded by `read` when they are asked for first; a file each, below `folder`."""

    def __init__(self, folder: Path, side: int) -> None:
        """side: longest side in pixels of what is kept."""
        if side < 32:
            raise ConfigError(f"cache_side is {side}; give at least 32 pixels")
        self.folder, self.side = folder / str(side), side

    def get(self, name: str, read: Callable[[], DecodedView]) -> DecodedView:
        """The view `name` as it is kept, or as `read` gives it and then kept."""
        digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
        path = self.folder / digest[:2] / f"{digest}.safetensors"
        if path.is_file():
            with suppress(DataError, KeyError, ValueError):  # damaged: made again
                tensors, metadata = read_safetensors(path, "remove it", DataError)
                unit, across, down = (float(word) for word in metadata["scales"].split())
                depth = tensors["depth"].float().numpy() * np.float32(unit)
                return DecodedView(tensors["photo"].numpy(), depth, (across, down))
        view = shrink(read(), self.side)
        depth = np.nan_to_num(view.depth, nan=0.0, posinf=0.0, neginf=0.0)
        unit = float(max(depth.max(initial=0.0), 1e-6)) / _LARGEST_HALF
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {
            "photo": torch.from_numpy(np.array(view.photo)),
            "depth": torch.from_numpy(depth / np.float32(unit)).half(),
        }
        scales = " ".join(repr(value) for value in (unit, *view.scale))
        write_safetensors(path, tensors, {"scales": scales, "name": name})
        return DecodedView(view.photo, tensors["depth"].float().numpy() * np.float32(unit), view.scale)
