"""What each step towards sub-pixel tracks brings, on the bundled courtyard with its true poses.

    python tools/courtyard_tracks.py OUT

All 16 views are matched once; the three kinds of tracks are built from the same matches. OUT keeps matches
and the last model, so a run that was killed goes on. Prints the table of docs/sfm.md.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import get_args

import numpy as np

from coam.geometry.alignment import pose_errors
from coam.matcher import load_matcher
from coam.samples import courtyard
from coam.sfm.cameras import CameraChoice
from coam.sfm.colmap_model import model_poses
from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions, Tracks, load_model


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    yard = courtyard()
    photos = out / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    for path in [*yard.day, *yard.night]:
        shutil.copy(path, photos / path.name)
    poses = {yard.image(name).name: yard.pose(name) for name in yard.names}
    truth = {
        name: (np.asarray(p.rotation, float), np.asarray(p.translation, float)) for name, p in poses.items()
    }
    low, high = np.percentile(yard.points, [5, 95], axis=0)
    matcher = load_matcher(max_matches=4096, resolution=640)  # the size of the pictures
    size = float(np.linalg.norm(high - low))
    print("| tracks | registered | points | track length | reprojection error | position | rotation |")
    print("|---|---|---|---|---|---|---|")
    for tracks in get_args(Tracks):
        options = SfmOptions(cameras=CameraChoice(sharing="all"), tracks=tracks)
        row = run_sfm(photos, out / "model", matcher, options)
        errors = pose_errors(model_poses(load_model(out / "model")[0]), truth, size)
        print(
            f"| {tracks} | {row['registered_images']} | {row['sparse_points']:,} "
            f"| {row['mean_track_length']:.1f} | {row['mean_reprojection_error']:.2f} px "
            f"| {100 * np.median(errors.position) / size:.3f} % | {np.median(errors.rotation):.3f} deg |"
        )


if __name__ == "__main__":
    main()
