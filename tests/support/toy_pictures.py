"""Pictures and descriptors whose correspondence is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coam.models.outputs import DenseDescriptors


def textured(height: int, width: int, seed: int) -> np.ndarray:
    """A photo-like picture (H, W, 3): smooth fields of colour at several scales."""
    import cv2

    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), np.float32)
    for knots, weight in ((4, 0.5), (12, 0.3), (40, 0.2)):
        field = rng.uniform(0, 1, (knots, knots, 3)).astype(np.float32)
        picture += weight * cv2.resize(field, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.rint(picture * 255).astype(np.uint8)


def described(labels: Tensor, score: float = 0.8) -> DenseDescriptors:
    """Descriptors of one image whose cells (rows, columns) show the places `labels`; equal labels match."""
    table = torch.nn.functional.normalize(
        torch.randn(100_000, 64, generator=torch.Generator().manual_seed(0)), dim=1
    )
    descriptors = table[labels].permute(2, 0, 1)[None]
    rows, columns = labels.shape
    size = (rows * 4, columns * 4)
    return DenseDescriptors(descriptors, torch.full((1, 1, rows, columns), score), 4, size)


def write_photos(folder: Path, count: int = 3) -> Path:
    """`count` photos of random textures in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        noise = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        noise.resize((96, 80), Image.Resampling.BICUBIC).save(folder / f"photo_{i}.png")
    return folder
