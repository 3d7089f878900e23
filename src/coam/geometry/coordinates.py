"""The only place where pixel conventions meet.

Ours: the centre of the top-left pixel is (0, 0). COLMAP's: that centre is (0.5, 0.5). `grid_sample`'s, with
align_corners=False: the image spans [-1, 1] from edge to edge. Resizing by s maps x to (x + 0.5) * s - 0.5.
All functions take and return arrays or tensors (..., 2) of (x, y).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # whoever has no tensors need not wait for torch
    import torch
    from torch import Tensor

Points = TypeVar("Points", npt.NDArray[np.floating], "Tensor")


def _like(values: tuple[float, float], points: Points) -> Points:
    if isinstance(points, np.ndarray):
        return np.asarray(values, dtype=points.dtype)
    from coam.tensors import constant

    return constant(values, points.device, points.dtype)


def resize_points(points: Points, scale: tuple[float, float]) -> Points:
    """Where `points` land when their image is resized by `scale` = (new / old width, new / old height)."""
    return (points + 0.5) * _like(scale, points) - 0.5


def to_colmap(points: Points) -> Points:
    """Our pixels to COLMAP's."""
    return points + 0.5


def from_colmap(points: Points) -> Points:
    """COLMAP's pixels to ours."""
    return points - 0.5


def to_unit(points: Tensor, width: int, height: int) -> Tensor:
    """Our pixels of a `width` x `height` image to grid_sample's [-1, 1] (align_corners=False)."""
    return (points + 0.5) * _like((2.0 / width, 2.0 / height), points) - 1.0


def rotate_points(points: Points, quarter_turns: int, width: int, height: int) -> Points:
    """Where points of a `width` x `height` image land when it is turned counter-clockwise by quarter turns.

    The turn is the one of `torch.rot90(image, quarter_turns, dims=(-2, -1))` and `numpy.rot90`.
    """
    x, y = points[..., 0], points[..., 1]
    turned = {
        0: (x, y),
        1: (y, width - 1 - x),
        2: (width - 1 - x, height - 1 - y),
        3: (height - 1 - y, x),
    }[quarter_turns % 4]
    if isinstance(points, np.ndarray):
        return np.stack(turned, axis=-1)
    import torch

    return torch.stack(turned, dim=-1)


def point_grid(size: tuple[int, int], count: int) -> npt.NDArray[np.float64]:
    """`count` x `count` pixels (N, 2), row by row, from corner to corner of a photo (width, height)."""
    x, y = (np.linspace(0, side - 1, count) for side in size)
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def cell_centres(
    columns: int, rows: int, stride: float | tuple[float, float], device: torch.device | None = None
) -> Tensor:
    """Pixel positions (rows * columns, 2) of the cells of a map, row by row.

    stride: pixels between cells, in x and y where they differ.
    """
    import torch

    across, down = stride if isinstance(stride, tuple) else (stride, stride)
    x = (torch.arange(columns, device=device, dtype=torch.float32) + 0.5) * across - 0.5
    y = (torch.arange(rows, device=device, dtype=torch.float32) + 0.5) * down - 0.5
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)
