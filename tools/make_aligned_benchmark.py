"""A benchmark of real changes of light and season with known geometry, in HPatches layout.

    python tools/make_aligned_benchmark.py GROUPS OUT [--jitter 0.18] [--seed 0]
    coam eval hpatches --root OUT

GROUPS holds one folder per spot (at any depth) with photos taken from it at other times. Two photos of each
group are taken; the second is seen through a random homography that moves each corner by up to `jitter`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np

from coam.data.photo_bank import aligned_groups


def random_homography(width: int, height: int, jitter: float, rng: np.random.Generator) -> np.ndarray:
    """Moves the corners of a width x height image at random; maps pixels to pixels."""
    corners = np.float32([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    moved = corners + rng.uniform(-jitter, jitter, (4, 2)) * [width, height]
    return cv2.getPerspectiveTransform(corners, moved.astype(np.float32))


def write_pair(photos: list[Path], folder: Path, jitter: float, rng: np.random.Generator) -> None:
    """1.png, 2.png and H_1_2 of one group."""
    first, second = (cv2.imread(str(photos[i])) for i in rng.choice(len(photos), 2, replace=False))
    height, width = first.shape[:2]
    second = cv2.resize(second, (width, height), interpolation=cv2.INTER_AREA)
    homography = random_homography(width, height, jitter, rng)
    folder.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / "1.png"), first)
    cv2.imwrite(str(folder / "2.png"), cv2.warpPerspective(second, homography, (width, height)))
    np.savetxt(folder / "H_1_2", homography)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--jitter", type=float, default=0.18)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    groups = aligned_groups(options.groups)
    for photos in groups:
        name = "_".join(photos[0].parent.relative_to(options.groups).parts)
        write_pair(photos, options.output / f"v_{name}", options.jitter, rng)
    print(f"{len(groups)} pairs in {options.output}")


if __name__ == "__main__":
    main()
