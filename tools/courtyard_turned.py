"""The bundled courtyard with half of its photos lying on their side, against its true poses.

    python tools/courtyard_turned.py OUT [--views 16]

Every second photo is turned by 90, 180 or 270 degrees; no EXIF says so. Prints which turns were found, and
the row of docs/sfm.md: errors of the cameras, those of turned photos as their files are. OUT keeps photos,
matches and model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from coam.geometry.alignment import pose_errors
from coam.matcher import load_matcher
from coam.samples import courtyard
from coam.sfm.cameras import CameraChoice
from coam.sfm.colmap_model import model_poses
from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions, load_model

TURNS = (0, 1, 0, 3, 0, 2, 0, 1)  # quarters, counter-clockwise, one photo after the other
QUARTER = np.array(
    [[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
)  # of a camera, as its picture is turned


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--views", type=int, default=16)
    chosen = parser.parse_args()
    out, yard = chosen.out, courtyard()
    photos = out / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    truth, turned = {}, {}
    for index, name in enumerate(yard.names[: chosen.views]):
        turn = TURNS[index % len(TURNS)]
        path = photos / f"{name}.png"
        if not path.exists():
            upright = np.asarray(Image.open(yard.image(name)).convert("RGB"))
            Image.fromarray(np.ascontiguousarray(np.rot90(upright, turn))).save(path)
        held = np.linalg.matrix_power(QUARTER, turn)
        truth[path.name] = (held @ yard.pose(name).rotation, held @ yard.pose(name).translation)
        if turn:
            turned[path.name] = (-turn) % 4
    matcher = load_matcher(max_matches=4096, resolution=640)  # the size of the pictures
    options = SfmOptions(cameras=CameraChoice(sharing="all"))
    row = run_sfm(photos, out / "model", matcher, options, print)
    low, high = np.percentile(yard.points, [5, 95], axis=0)
    size = float(np.linalg.norm(high - low))
    errors = pose_errors(model_poses(load_model(out / "model")[0]), truth, size)
    right = sum(row["turned"].get(name, 0) == turned.get(name, 0) for name in truth)
    print("| turns found | registered | points | reprojection error | position | rotation | worst rotation |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {right} of {len(truth)} | {row['registered_images']} | {row['sparse_points']:,} "
        f"| {row['mean_reprojection_error']:.2f} px | {100 * np.median(errors.position) / size:.3f} % "
        f"| {np.median(errors.rotation):.3f} deg | {errors.rotation.max():.3f} deg |"
    )


if __name__ == "__main__":
    main()
