"""Pairs with the true colours, from groups of aligned photos, for `coam eval stylization`.

    python tools/make_stylization_benchmark.py ALIGNED OUT [--views 1] [--styles 2] [--jitter 0.25] [--seed 0]
    coam eval stylization --root OUT

ALIGNED holds one folder per kind of change (season, day_night, ...), each with one folder per spot that holds
photos taken from it at other times. VIEW is a random quadrilateral of one photo, STYLE another one of another
photo, both unbent to the photo's size, so that neither has an empty border. OUT/KIND is in HPatches layout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np

from coam.data.photo_bank import aligned_groups


def random_view(width: int, height: int, jitter: float, rng: np.random.Generator) -> np.ndarray:
    """Photo to view: a quadrilateral, its corners up to `jitter` inside the photo, fills the frame."""
    frame = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], dtype=np.float32)
    inwards = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    corners = frame + inwards * rng.uniform(0, jitter, (4, 2)) * [width, height]
    return cv2.getPerspectiveTransform(corners.astype(np.float32), frame)


def write_sequence(
    photos: list[Path], folder: Path, styles: int, jitter: float, rng: np.random.Generator
) -> None:
    """1.png (VIEW), 2.png ... (STYLE) and H_1_2 ... of one group."""
    chosen = rng.permutation(len(photos))[: styles + 1]
    pictures = [cv2.imread(str(photos[i])) for i in chosen]
    height, width = pictures[0].shape[:2]
    folder.mkdir(parents=True, exist_ok=True)
    first = random_view(width, height, jitter, rng)
    cv2.imwrite(str(folder / "1.png"), cv2.warpPerspective(pictures[0], first, (width, height)))
    for number, picture in enumerate(pictures[1:], start=2):
        picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
        homography = random_view(width, height, jitter, rng)
        cv2.imwrite(str(folder / f"{number}.png"), cv2.warpPerspective(picture, homography, (width, height)))
        np.savetxt(folder / f"H_1_{number}", homography @ np.linalg.inv(first))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("aligned", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["season", "day_night", "exposures"])
    parser.add_argument("--views", type=int, default=1, help="of each spot")
    parser.add_argument("--styles", type=int, default=2, help="of each view, at most")
    parser.add_argument("--jitter", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    for kind in options.kinds:
        for photos in aligned_groups(options.aligned / kind):
            # Spots with many photos are worth several views.
            for view in range(max(options.views, len(photos) // 4)):
                folder = options.output / kind / f"v_{kind}_{photos[0].parent.name}_{view}"
                write_sequence(photos, folder, options.styles, options.jitter, rng)


if __name__ == "__main__":
    main()
