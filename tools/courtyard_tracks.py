"""What each step towards sub-pixel tracks brings, on the bundled courtyard with its true poses.

    python tools/courtyard_tracks.py OUT

All 16 views are matched once; the three kinds of tracks are built from the same matches. OUT keeps matches
and the last model, so a run that was killed goes on. Prints the table of docs/sfm.md.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from coam.matcher import load_matcher
from coam.samples import courtyard
from coam.sfm.intrinsics import CameraChoice
from coam.sfm.pipeline import SfmOptions
from coam.sfm.variants import compare_variants


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
    surface = np.array([point.position for point in yard.points.values()])
    low, high = np.percentile(surface, [5, 95], axis=0)
    matcher = load_matcher(max_matches=4096, resolution=640)  # the size of the pictures
    options = SfmOptions(cameras=CameraChoice(sharing="all"))
    size = float(np.linalg.norm(high - low))
    found = compare_variants(photos, out / "model", matcher, options, truth, size, say=print)
    print("| tracks | registered | points | track length | reprojection error | position | rotation |")
    print("|---|---|---|---|---|---|---|")
    for name, row in found.items():
        print(
            f"| {name} | {row['registered_images']:.0f} | {row['sparse_points']:,.0f} "
            f"| {row['mean_track_length']:.1f} | {row['mean_reprojection_error']:.2f} px "
            f"| {100 * row['median_position_error']:.3f} % | {row['median_rotation_error']:.3f} deg |"
        )


if __name__ == "__main__":
    main()
