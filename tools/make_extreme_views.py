"""Extreme views of textured planes with known homographies, in HPatches layout, and wrong pairs.

    python tools/make_extreme_views.py pairs TEXTURES BACKGROUNDS out/extreme [--count 48] [--seed 0]
    python tools/make_extreme_views.py wrong PHOTOS out/wrong [--count 200] [--seed 0]
    coam eval hpatches --root out/extreme; coam eval pair-score --root out/wrong

A photo of TEXTURES is a wall, seen before a photo of BACKGROUNDS: from the front and from 72 to 80 degrees
aside (tilt); from 66 to 76 degrees by both, one from the side and one from below (sides); near and 4 to 6
times as far, turned (zoom); near and 2.5 to 5 times as far from 60 to 75 degrees (tilt_zoom); turned, from
68 to 80 degrees (tilt_turn). Every other five pairs are by night: dark, lit by lamps of one colour, noisy.
Which of the two comes first changes from pair to pair.

With --groups TEXTURES holds folders of photos from one spot at other times, or by another sensor, and the two
cameras see two of them: the light is real, and the truth as exact as the photos are aligned.

Neighbouring sequences have textures from different folders, so that `coam eval pair-score --root out/extreme`
has wrong pairs of different places; `wrong` writes more of them, photos as they are.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path

import cv2
import numpy as np

from coam.data.photo_bank import aligned_groups
from coam.images.folder import list_photos

SIZE = (640, 480)  # pixels of every picture
FOCAL = 800.0  # pixels
SUPERSAMPLING = 6  # times, before area means: a wall seen from the side is squeezed up to tenfold
DETAIL = 0.5  # of the texture's sides: what the near camera of a zoomed pair sees
JPEG_QUALITY = 92


@dataclass(frozen=True)
class Extreme:
    """Where a camera stands that looks at the middle of the wall."""

    tilt: float = 0.0  # degrees between the wall's normal and the camera's axis
    direction: float = 0.0  # degrees: about which axis in the wall
    zoom: float = 1.0  # times as far away
    turn: float = 0.0  # degrees about the camera's axis


def front(random: np.random.Generator) -> Extreme:
    """A camera before the wall."""
    return Extreme(tilt=random.uniform(0, 15), turn=random.uniform(-5, 5))


def cameras_of(kind: str, random: np.random.Generator) -> tuple[Extreme, Extreme]:
    """The two cameras of a kind of pair."""
    sign = random.choice([-1, 1])
    direction = random.uniform(0, 360)
    if kind == "tilt":
        return front(random), Extreme(random.uniform(72, 80), direction, turn=random.uniform(-20, 20))
    if kind == "sides":
        other = direction + random.uniform(60, 120)
        return Extreme(random.uniform(66, 76), direction), Extreme(random.uniform(66, 76), other)
    turn = sign * random.uniform(40, 140)
    if kind == "zoom":
        return front(random), Extreme(random.uniform(20, 45), direction, random.uniform(4, 6), turn)
    if kind == "tilt_zoom":
        return front(random), Extreme(random.uniform(60, 75), direction, random.uniform(2.5, 5))
    return front(random), Extreme(random.uniform(68, 80), direction, random.uniform(1, 2), turn)


KINDS = ("tilt", "sides", "zoom", "tilt_zoom", "tilt_turn")


def projection(view: Extreme, near: float) -> np.ndarray:
    """Homography (3, 3) from the wall, its unit half the picture's width, to pixels of a camera.

    near: distance at which the wall's unit fills half the picture.
    """
    tilt, direction, turn = np.radians([view.tilt, view.direction, view.turn])
    axis = np.array([np.cos(direction), np.sin(direction), 0.0]) * tilt
    rotation = cv2.Rodrigues(np.array([0.0, 0.0, turn]))[0] @ cv2.Rodrigues(axis)[0]
    camera = np.array([[FOCAL, 0, (SIZE[0] - 1) / 2], [0, FOCAL, (SIZE[1] - 1) / 2], [0, 0, 1.0]])
    shift = np.array([0.0, 0.0, near * view.zoom])
    return camera @ np.column_stack([rotation[:, 0], rotation[:, 1], shift])


def render(texture: np.ndarray, to_pixels: np.ndarray, background: np.ndarray) -> np.ndarray:
    """The wall (through `to_pixels`, texture to picture) before the background, in area means."""
    fine = (SIZE[0] * SUPERSAMPLING, SIZE[1] * SUPERSAMPLING)
    s = float(SUPERSAMPLING)
    enlarge = np.array([[s, 0, (s - 1) / 2], [0, s, (s - 1) / 2], [0, 0, 1.0]])
    wall = cv2.warpPerspective(texture, enlarge @ to_pixels, fine, flags=cv2.INTER_LINEAR)
    cover = cv2.warpPerspective(np.full(texture.shape[:2], 255, np.uint8), enlarge @ to_pixels, fine)
    wall, cover = (cv2.resize(p, SIZE, interpolation=cv2.INTER_AREA) for p in (wall, cover))
    share = cover[..., None].astype(np.float32) / 255
    return wall + (1 - share) * background


def light(picture: np.ndarray, night: bool, random: np.random.Generator) -> np.ndarray:
    """Exposure, lamps and noise; night is dark, of one colour, lit in patches."""
    value = (picture / 255.0).clip(0, 1)
    noise = random.uniform(1, 2)
    if night:
        x, y = np.meshgrid(np.linspace(0, 1, SIZE[0]), np.linspace(0, 1, SIZE[1]))
        lamps = sum(
            np.exp(-((x - a) ** 2 + (y - b) ** 2) / c**2) for a, b, c in random.uniform(0.1, 0.9, (3, 3))
        )
        colour = np.array([[0.45, 0.75, 1.0], [1.0, 0.75, 0.55]])[random.integers(2)]  # lamps or moon, BGR
        value = value ** random.uniform(1.2, 1.8) * (0.08 + 0.45 * lamps)[..., None] * colour
        noise = random.uniform(4, 7)
    else:
        value = value ** random.uniform(0.8, 1.25) * random.uniform(0.85, 1.1)
    noisy = value.clip(0, 1) * 255 + random.normal(0, noise, value.shape)
    return noisy.round().clip(0, 255).astype(np.uint8)


def covering(photo: np.ndarray) -> np.ndarray:
    """The middle of a photo at the pictures' size."""
    height, width = photo.shape[:2]
    scale = max(SIZE[0] / width, SIZE[1] / height)
    grown = cv2.resize(
        photo, (round(width * scale + 1), round(height * scale + 1)), interpolation=cv2.INTER_AREA
    )
    left, top = (grown.shape[1] - SIZE[0]) // 2, (grown.shape[0] - SIZE[1]) // 2
    return grown[top : top + SIZE[1], left : left + SIZE[0]].astype(np.float32)


def write_pair(
    folder: Path,
    textures: list[Path],
    behind: list[Path],
    kind: str,
    night: bool,
    random: np.random.Generator,
) -> None:
    """1.jpg, 2.jpg and H_1_2 of one wall, which shows each camera one of two `textures`."""
    walls = [cv2.imread(str(texture)) for texture in textures]
    height, width = walls[0].shape[:2]
    walls[1] = cv2.resize(walls[1], (width, height), interpolation=cv2.INTER_AREA)
    part = DETAIL if "zoom" in kind else 1.0
    # Texture pixels to the wall's unit: half the width (or height) of what the front camera sees.
    unit = part / 2 * min(width, height * SIZE[0] / SIZE[1])
    centre = (np.array([width, height]) - 1) / 2
    to_wall = np.array([[1 / unit, 0, -centre[0] / unit], [0, 1 / unit, -centre[1] / unit], [0, 0, 1.0]])
    near = 2 * FOCAL / SIZE[0]
    cameras, lights = cameras_of(kind, random), (False, night)
    if random.random() < 0.5:
        cameras, lights = cameras[::-1], lights[::-1]
    maps = [projection(camera, near) @ to_wall for camera in cameras]
    folder.mkdir(parents=True)
    for index in (0, 1):
        picture = render(walls[index], maps[index], covering(cv2.imread(str(behind[index]))))
        picture = light(picture, lights[index], random)
        cv2.imwrite(str(folder / f"{index + 1}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    homography = maps[1] @ np.linalg.inv(maps[0])
    np.savetxt(folder / "H_1_2", homography / homography[2, 2])


def in_turn(root: Path, groups: bool) -> list[tuple[str, list[Path]]]:
    """Name and two photos of every wall, one of each folder below `root` in turn."""
    if groups:
        kinds: dict[str, list[tuple[str, list[Path]]]] = {}
        for photos in aligned_groups(root):
            parts = photos[0].parent.relative_to(root).parts
            kinds.setdefault(parts[0], []).append(("_".join(parts), [photos[0], photos[-1]]))
        walls = list(kinds.values())
    else:
        folders = [each for each in sorted(root.iterdir()) if each.is_dir()] or [root]
        walls = [[(photo.stem, [photo, photo]) for photo in list_photos(folder)] for folder in folders]
    return [wall for row in zip_longest(*walls) for wall in row if wall is not None]


def make_pairs(options: argparse.Namespace) -> str:
    """The benchmark of extreme views."""
    random = np.random.default_rng(options.seed)
    walls, behind = in_turn(options.textures, options.groups), list_photos(options.backgrounds)
    for index in range(options.count):
        kind, night = KINDS[index % len(KINDS)], (index // len(KINDS)) % 2 == 1
        name, textures = walls[(options.first + index) % len(walls)]
        light_name = "real" if options.groups else "night" if night else "day"
        two = [behind[k] for k in random.choice(len(behind), 2, replace=False)]
        folder = options.output / f"v_{index:03d}_{kind}_{light_name}_{name}"
        write_pair(folder, textures, two, kind, light_name == "night", random)
    return f"{options.count} pairs in {options.output}"


def make_wrong(options: argparse.Namespace) -> str:
    """Pairs of different photos of a folder: neighbours in a random order, of which each is used twice."""
    random = np.random.default_rng(options.seed)
    photos = list_photos(options.photos)
    chosen = [photos[k] for k in random.permutation(len(photos))[: options.count + 1]]
    options.output.mkdir(parents=True)
    for photo in chosen:
        shutil.copy(photo, options.output / photo.name)
    lines = [f"{a.name} {b.name} 0" for a, b in pairwise(chosen)]
    (options.output / "pairs.txt").write_text("\n".join(lines) + "\n")
    return f"{len(lines)} pairs of different places in {options.output}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    pairs = commands.add_parser("pairs", help="extreme views of planes")
    pairs.add_argument("textures", type=Path)
    pairs.add_argument("backgrounds", type=Path)
    pairs.add_argument("--groups", action="store_true", help="two photos of each place")
    pairs.add_argument("--first", type=int, default=0, help="texture to begin with, to hold others out")
    pairs.set_defaults(make=make_pairs)
    wrong = commands.add_parser("wrong", help="pairs of different places")
    wrong.add_argument("photos", type=Path)
    wrong.set_defaults(make=make_wrong)
    for command, count in ((pairs, 48), (wrong, 200)):
        command.add_argument("output", type=Path)
        command.add_argument("--count", type=int, default=count)
        command.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(options.make(options))


if __name__ == "__main__":
    main()
