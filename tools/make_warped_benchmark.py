"""A benchmark of exact homographies: photos shown twice, through two homographies and in other light.

    python tools/make_warped_benchmark.py PHOTOS OUT [--count 60] [--side 448] [--jitter 0.18] [--light 0.5]
    coam eval hpatches --root OUT

Both pictures of a pair are drawn from one photo, smaller than it and each sampled anew (two times finer,
then averaged), so neither is sharper than the other nor shares its pixels, noise or JPEG blocks. The second
is seen through a homography that moves each corner by up to `jitter` of the sides, the first by up to a
quarter of that. Half of the pairs keep their light (i_...); in the others (v_...) that of one picture is
changed, by `coam.data.photometric` at strength `light`. The truth is exact to rounding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch
from make_aligned_benchmark import random_homography

from coam.data.photometric import change_light
from coam.images import load_image
from coam.images.folder import list_photos

FINER = 2  # times: the grid on which a photo is sampled before it is averaged
NOISE = 2.0  # grey values, standard deviation, of each picture's own sensor
QUALITY = 92  # of JPEG


def shown(photo: np.ndarray, homography: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A picture of `size` (width, height) whose pixel H(x) shows pixel x of the photo (H, W, 3)."""
    finer = np.array([[FINER, 0, (FINER - 1) / 2], [0, FINER, (FINER - 1) / 2], [0, 0, 1]])
    large = cv2.warpPerspective(
        photo,
        finer @ homography,
        (FINER * size[0], FINER * size[1]),
        None,
        cv2.INTER_CUBIC,
        cv2.BORDER_REFLECT_101,
    )
    return cv2.resize(large, size, interpolation=cv2.INTER_AREA)


def in_other_light(picture: np.ndarray, strength: float, seed: int) -> np.ndarray:
    """The picture (H, W, 3) as `change_light` makes it."""
    image = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255
    changed = change_light(image, torch.tensor([strength]), torch.Generator().manual_seed(seed))
    return (changed[0].permute(1, 2, 0) * 255).round().byte().numpy()


def write_pair(photo: np.ndarray, folder: Path, side: int, jitter: float, light: float, seed: int) -> None:
    """1.jpg, 2.jpg and H_1_2 of one photo."""
    rng = np.random.default_rng(seed)
    scale = side / max(photo.shape[:2])
    size = round(photo.shape[1] * scale), round(photo.shape[0] * scale)
    smaller = np.array([[scale, 0, (scale - 1) / 2], [0, scale, (scale - 1) / 2], [0, 0, 1]])
    warps = [random_homography(*size, share, rng) @ smaller for share in (jitter / 4, jitter)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, warp in zip("12", warps, strict=True):
        picture = shown(photo, warp, size)
        if light and name == "2":
            picture = in_other_light(picture, light, seed)
        noisy = np.clip(picture + rng.normal(0, NOISE, picture.shape), 0, 255).round().astype(np.uint8)
        file = folder / f"{name}.jpg"
        cv2.imwrite(str(file), np.ascontiguousarray(noisy[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    np.savetxt(folder / "H_1_2", warps[1] @ np.linalg.inv(warps[0]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--count", type=int, default=60, help="photos, evenly spread over the folder")
    parser.add_argument("--first", type=int, default=0, help="of the folder's photos: another half of them")
    parser.add_argument("--side", type=int, default=448, help="long side of the pictures in pixels")
    parser.add_argument("--jitter", type=float, default=0.18)
    parser.add_argument("--light", type=float, default=0.5)
    given = parser.parse_args()
    photos = list_photos(given.photos)[given.first :]
    chosen = photos[:: max(1, len(photos) // given.count)][: given.count]
    for seed, path in enumerate(chosen):
        light = given.light if seed % 2 else 0.0
        name = f"{'v' if light else 'i'}_{path.stem}"
        write_pair(load_image(path).rgb, given.output / name, given.side, given.jitter, light, seed)
    print(f"{len(chosen)} pairs in {given.output}")


if __name__ == "__main__":
    main()
