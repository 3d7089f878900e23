"""Pairs with dense truth from the bundled samples, for `coam eval warp`.

    python tools/make_warp_benchmark.py OUT
    coam eval warp --root OUT

The Middlebury motorcycle, left to right, by its disparity; every ordered pair of the courtyard's four views
with depth, by day and from and to the night. The layout is that of `coam.evaluation.benchmarks.warp`.
"""

from __future__ import annotations

import argparse
import io
import shutil
from itertools import permutations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coam import samples
from coam.evaluation.benchmarks.warp import HIDDEN, OUTSIDE, TRUTH, VISIBLE
from coam.geometry.coordinates import cell_centres
from coam.geometry.depth import intrinsics_matrix, project_by_depth, relative_pose
from coam.store.atomic import atomic_write

Truth = tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]  # points (H, W, 2), state (H, W)


def motorcycle_truth(sample: samples.StereoSample) -> Truth:
    """Left to right; a left pixel that something nearer covers on the right is hidden."""
    width, height = sample.size
    pixels = cell_centres(width, height, 1).numpy()
    points, _ = sample.true_points1(pixels)
    disparity = sample.disparity.ravel()
    x = pixels[:, 0] - disparity
    inside = (x >= 0) & (x <= width - 1)
    state = np.select(
        [np.isnan(disparity), ~inside, ~sample.visible_right.ravel()], [0, OUTSIDE, HIDDEN], VISIBLE
    )
    return points.reshape(height, width, 2), state.reshape(height, width).astype(np.uint8)


def courtyard_truth(yard: samples.CourtyardSample, name0: str, name1: str) -> Truth:
    """By depth and cameras; where depth is not known or has an edge nothing is claimed."""
    depth0, depth1 = (torch.from_numpy(np.nan_to_num(yard.depth(name)))[None] for name in (name0, name1))
    cameras = [yard.camera(name) for name in (name0, name1)]
    matrices = [
        intrinsics_matrix(torch.tensor([[*camera.focal, *camera.principal]], dtype=torch.float32))
        for camera in cameras
    ]
    poses = [
        torch.from_numpy(np.column_stack([pose.rotation, pose.translation])).float()[None]
        for pose in (yard.pose(name0), yard.pose(name1))
    ]
    height, width = depth0.shape[-2:]
    pixels = cell_centres(width, height, 1)[None]
    found = project_by_depth(pixels, depth0, matrices[0], depth1, matrices[1], relative_pose(*poses))
    state = torch.zeros(height * width, dtype=torch.uint8)
    for mask, value in ((found.outside, OUTSIDE), (found.occluded, HIDDEN), (found.valid, VISIBLE)):
        state[mask[0]] = value
    points = torch.where(found.known[0].unsqueeze(1), found.points1[0], torch.nan)
    return points.view(height, width, 2).numpy(), state.view(height, width).numpy()


def write_pair(folder: Path, photos: tuple[Path, Path], truth: Truth) -> None:
    """FOLDER/0.*, 1.* and the truth."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, photo in enumerate(photos):
        shutil.copyfile(photo, folder / f"{index}{photo.suffix}")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, points=truth[0].astype(np.float32), state=truth[1])
    with atomic_write(folder / TRUTH) as temporary:
        temporary.write_bytes(buffer.getvalue())


def write_bundled(output: Path) -> int:
    """All pairs of the bundled samples below `output`; how many they are."""
    pair = samples.motorcycle()
    write_pair(output / "motorcycle" / "left-right", (pair.left, pair.right), motorcycle_truth(pair))
    yard = samples.courtyard()
    ordered = list(permutations(yard.depth_names, 2))
    for name0, name1 in ordered:
        by_day = name0.startswith("day") and name1.startswith("day")
        folder = output / ("courtyard-day" if by_day else "courtyard-night") / f"{name0}-{name1}"
        write_pair(folder, (yard.image(name0), yard.image(name1)), courtyard_truth(yard, name0, name1))
    return 1 + len(ordered)


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    print(f"wrote {write_bundled(arguments.output)} pairs to {arguments.output}")


if __name__ == "__main__":
    main()
