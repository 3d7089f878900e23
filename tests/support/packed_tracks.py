"""Packed tracks whose photos say by their colours where each pixel is."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from coam.data.packed import PackedTracks, concatenate_bytes


def gradient_photo(width: int, height: int) -> np.ndarray:
    """Red is x, green is y (pixel values), blue is 255: a crop's colours say where each pixel came from."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([x, y, np.full_like(x, 255)], axis=-1).astype(np.uint8)


def make_packed(
    positions: list[np.ndarray],
    pairs: list[tuple[int, int]],
    angle: list[float],
    scene: list[int],
    size: tuple[int, int] = (240, 200),
) -> PackedTracks:
    """Photos that all observe points 0..n-1 at `positions[photo]` (n, 2); photos are smooth gradients."""
    parts = []
    for _ in positions:
        buffer = io.BytesIO()
        Image.fromarray(gradient_photo(*size)).save(
            buffer, "PNG"
        )  # lossless; PIL looks at the bytes, not the name
        parts.append(buffer.getvalue())
    jpeg, spans = concatenate_bytes(parts)
    count, number = len(positions), len(positions[0])
    return PackedTracks(
        jpeg=jpeg,
        jpeg_spans=spans,
        sizes=np.array([size] * count, dtype=np.int32),
        image_scene=np.array(scene, dtype=np.int32),
        intrinsics=np.tile([100.0, 100, 99.5, 99.5], (count, 1)),
        poses=np.tile(np.eye(4)[:3], (count, 1, 1)),
        observation_offsets=np.arange(count + 1) * number,
        observation_point=np.tile(np.arange(number), count),
        observation_xy=np.concatenate(positions).astype(np.float32),
        observation_depth=np.ones(count * number, dtype=np.float32),
        pairs=np.array(pairs, dtype=np.int32),
        pair_shared=np.full(len(pairs), number, dtype=np.int32),
        pair_angle=np.array(angle, dtype=np.float32),
        scenes=tuple(f"s{k}" for k in range(max(scene) + 1)),
        names=tuple(str(k) for k in range(count)),
    )
