"""Do the backends give the same matches, and matches as good? Photos under random homographies and light.

    python -m benchmarks.backends PHOTOS [--count 24] [--backends plain,float32,bfloat16] [--size 512]

PHOTOS is a folder; `count` of them are taken evenly. All backends are compared with the first: a match is the
same when its point of photo 1 lies within half a pixel.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

import coam
from coam.geometry.homography import apply_homography
from coam.images import load_image
from coam.images.folder import list_photos
from coam.types import Matches

Array = npt.NDArray[np.float64]
CORNER_SHIFT = 0.18  # of the side
LIMITS = (0.5, 1.0, 2.0, 3.0)  # pixels


def random_view(
    photo: npt.NDArray[np.uint8], rng: np.random.Generator
) -> tuple[npt.NDArray[np.uint8], Array]:
    """The photo from elsewhere in another light, and the homography (3, 3) to it."""
    size = len(photo)
    corners = np.array([[0, 0], [size - 1, 0], [size - 1, size - 1], [0, size - 1]], np.float32)
    moved = corners + rng.uniform(-CORNER_SHIFT, CORNER_SHIFT, (4, 2)).astype(np.float32) * size
    homography = cv2.getPerspectiveTransform(corners, moved)
    warped = cv2.warpPerspective(photo, homography, (size, size)) / 255.0
    lit = 255 * warped ** rng.uniform(0.6, 1.6) * rng.uniform(0.7, 1.1)
    return np.clip(lit, 0, 255).astype(np.uint8), np.asarray(homography, np.float64)


def same_share(matches: Matches, reference: Matches) -> float:
    """Share of `matches` that `reference` has too."""
    known = dict(_pairs(reference))
    same = [p in known and np.abs(known[p] - partner).max() < 0.5 for p, partner in _pairs(matches)]
    return float(np.mean(same)) if same else 0.0


def _pairs(matches: Matches) -> Iterator[tuple[tuple[float, ...], npt.NDArray[np.float32]]]:
    for point, partner in zip(matches.points0.round(1), matches.points1, strict=True):
        yield tuple(point.tolist()), partner


def main() -> None:
    """Print one line a backend."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--backends", default="plain,float32,bfloat16")
    parser.add_argument("--size", type=int, default=512)
    options = parser.parse_args()
    matchers = {
        name: coam.load_matcher(device="cpu", backend=name, resolution=options.size, looks="once")
        for name in options.backends.split(",")
    }
    errors: dict[str, list[Array]] = {name: [] for name in matchers}
    same: dict[str, list[float]] = {name: [] for name in matchers}
    rng = np.random.default_rng(0)
    photos = list_photos(options.photos)
    for index in np.linspace(0, len(photos) - 1, min(options.count, len(photos))).astype(int):
        photo = cv2.resize(
            load_image(photos[index]).rgb, (options.size, options.size), interpolation=cv2.INTER_AREA
        ).astype(np.uint8)
        view, homography = random_view(photo, rng)
        reference = None
        for name, matcher in matchers.items():
            matches = matcher.match(photo, view)
            reference = matches if reference is None else reference
            off = apply_homography(homography, matches.points0) - matches.points1
            errors[name].append(np.linalg.norm(off, axis=1))
            same[name].append(same_share(matches, reference))
    print("backend | same | " + " | ".join(f"within {limit} px" for limit in LIMITS) + " | matches")
    for name, all_errors in errors.items():
        joined = np.concatenate(all_errors)
        shares = " | ".join(f"{np.mean(joined < limit):.4f}" for limit in LIMITS)
        print(f"{name} | {np.mean(same[name]):.4f} | {shares} | {len(joined)}")


if __name__ == "__main__":
    main()
