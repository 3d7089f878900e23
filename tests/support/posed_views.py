"""Two rendered views whose colours say which place of the world a pixel shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coam.capsnet.losses import epipolar_distance
from coam.capsnet.pairs import PosedBatch
from coam.capsnet.photos import PosedPairList
from coam.geometry.pose import relative_pose_matrix
from support.rendered_world import camera_pose, cast

CAMERA = np.array([[150.0, 0, 99.5], [0, 150.0, 79.5], [0, 0, 1]])
WIDTH, HEIGHT = 200, 160
POSE0, POSE1 = camera_pose((-0.4, 0, 0), 3.0), camera_pose((0.5, 0.1, 0.1), -6.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def paint(pose: np.ndarray) -> np.ndarray:
    """A photo (HEIGHT, WIDTH, 3) uint8 whose colour says which place of the world a pixel shows."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    places, _ = cast(pose, CAMERA, np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float64))
    colour = np.clip((places - [-4.0, -3.0, 1.0]) / [8.0, 6.0, 4.0], 0, 1) * 250 + 5
    return colour.round().reshape(HEIGHT, WIDTH, 3).astype(np.uint8)


def same_colour_distance(batch: PosedBatch) -> Tensor:
    """Epipolar distance of pixels of the first pair that show the same place: those of the same colour."""
    size = batch.image0.shape[-1]
    colours0 = batch.image0[0].permute(1, 2, 0).reshape(-1, 3)
    colours1 = batch.image1[0].permute(1, 2, 0).reshape(-1, 3)
    index = torch.arange(0, size * size, 37)
    index = index[colours0[index].sum(dim=1) > 0.05]
    nearest = torch.cdist(colours0[index], colours1).min(dim=1)
    sure = nearest.values < 0.003
    points0 = torch.stack([index % size, index // size], dim=-1)[sure].float()[None]
    points1 = torch.stack([nearest.indices % size, nearest.indices // size], dim=-1)[sure].float()[None]
    assert sure.sum() > 50
    return epipolar_distance(points0, points1, batch.fundamental)


def write_list(root: Path, line_change: str = "") -> Path:
    for index, pose in enumerate((POSE0, POSE1)):
        Image.fromarray(paint(pose)).save(root / f"{index}.png")
    numbers = np.concatenate([CAMERA.ravel(), CAMERA.ravel(), relative_pose_matrix(POSE0, POSE1).ravel()])
    line = "0.png 1.png 0 0 " + " ".join(map(str, numbers)) + line_change
    (root / "pairs_with_gt.txt").write_text(f"# comment\n\n{line}\n")
    return root


def listed(**changes: object) -> PosedPairList:
    """Two rendered views as photos."""
    photos = [paint(pose) for pose in (POSE0, POSE1)]
    fields: dict[str, object] = {
        "photo": lambda index: photos[index],
        "pairs": np.array([[0, 1]]),
        "cameras0": CAMERA[None],
        "cameras1": CAMERA[None],
        "transforms": relative_pose_matrix(POSE0, POSE1)[None],
        "weights": np.ones(1),
        **changes,
    }
    return PosedPairList(**fields)  # type: ignore[arg-type]
