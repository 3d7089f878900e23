"""Pairs with truth that the probability of `coam register` is fitted to; the table's are others.

    python tools/make_registration_pairs.py TRAINING OUT [--most 40] [--seed 1]
    python tools/calibrate_registration.py OUT --on TABLE/pairs

TRAINING holds what tools/make_training_data.py writes: aligned/KIND/GROUP/*.jpg (training groups: the table
shows none of their places) and photos/. Written below OUT/pairs:
- the aligned kinds: two photos of a group, one seen through a random homography;
- photo: one photo twice, one of them another sensor's (tones bent and turned round) behind a homography;
- elastic: the same, with waves of 2 to 10 px in place of the homography, so that a local model is right;
- world: planes at several depths, a photo on each, seen from places near each other;
- courtyard: views of the bundled courtyard of which at most one is in the table; surface points that both see
  are the truth. Scenes with depth have no right transform unless the camera hardly moved.
"""

from __future__ import annotations

import argparse
from itertools import permutations
from pathlib import Path

import cv2
import numpy as np
import torch
from make_aligned_benchmark import random_homography
from make_aligned_benchmark import write_pair as write_aligned
from registration_checks import other_sensor

from coam import samples
from coam.data.photo_bank import aligned_groups, evenly_chosen, load_part, pack_bank
from coam.data.worlds import WorldConfig, WorldPairs
from coam.evaluation.benchmarks.registration import HOMOGRAPHY, LANDMARKS
from coam.store.documents import write_json

ALIGNED = {"season": 1.0, "thermal": 1.0, "exposures": 0.4, "day_night": 0.4}  # kind -> share of --most
WORLD_SIDE = 512  # pixels
WORLD_WALKS = (1.0, 2.0, 4.0, 8.0)  # degrees that each camera walks around the scene, to either side
JITTERS = (0.1, 0.18, 0.25)  # of the made homographies: how far corners move, in sides


def write_groups(groups: Path, pairs: Path, most: int, rng: np.random.Generator) -> None:
    """PAIRS/KIND/GROUP of aligned photos."""
    for kind, share in ALIGNED.items():
        found = aligned_groups(groups / kind)
        chosen = evenly_chosen(found, round(share * most))
        for number in range(max(len(chosen), 8)):  # few groups of many photos give several pairs
            photos = chosen[number % len(chosen)]
            folder = pairs / kind / f"{photos[0].parent.name}-{number:03d}"
            write_aligned(photos, folder, JITTERS[number % len(JITTERS)], rng)


def write_photos(photos: list[Path], pairs: Path, rng: np.random.Generator) -> None:
    """PAIRS/photo/NAME behind homographies and PAIRS/elastic/NAME behind waves, every third."""
    for number, path in enumerate(photos):
        rgb = cv2.imread(str(path))
        height, width = rgb.shape[:2]
        moving = (other_sensor(rgb, number) / 4095 * 255).astype(np.uint8)
        if number % 3:
            homography = random_homography(width, height, JITTERS[number % len(JITTERS)], rng)
            folder = pairs / "photo" / path.stem
            folder.mkdir(parents=True)
            cv2.imwrite(str(folder / "1.png"), moving)
            cv2.imwrite(str(folder / "2.png"), cv2.warpPerspective(rgb, homography, (width, height)))
            np.savetxt(folder / HOMOGRAPHY, homography)
            continue
        amplitude, wave = rng.uniform(2, 10), 0.5 * max(width, height) * rng.uniform(0.8, 1.6)
        phase = rng.uniform(0, 6, 2)
        marks = _grid(width, height)
        x, y = np.meshgrid(np.arange(width), np.arange(height))
        dense = _waves(np.stack([x, y], -1).astype(np.float64), amplitude, wave, phase).astype(np.float32)
        fixed = cv2.remap(rgb, dense[..., 0], dense[..., 1], cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
        _write_marks(
            pairs / "elastic" / path.stem, moving, fixed, _waves(marks, amplitude, wave, phase), marks
        )


def _waves(fixed: np.ndarray, amplitude: float, wave: float, phase: np.ndarray) -> np.ndarray:
    """Places (..., 2) in the moving image of points of the fixed one."""
    return fixed + amplitude * np.sin(2 * np.pi / wave * fixed[..., ::-1] + phase)


def _grid(width: int, height: int) -> np.ndarray:
    x, y = (np.linspace(0.05 * side, 0.95 * side, 12) for side in (width, height))
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def write_worlds(photos: Path, pairs: Path, most: int, seed: int) -> None:
    """PAIRS/world/NUMBER: planes at several depths, each with a photo, seen from places near each other."""
    parts = [load_part(photos, WORLD_SIDE, torch.device("cpu"), max_groups=8 * most)]
    bank = pack_bank(parts)
    generator = torch.Generator().manual_seed(seed)
    for number in range(most):
        walk = WORLD_WALKS[number % len(WORLD_WALKS)]
        config = WorldConfig("world", yaw=walk, roll=2.0, strong_roll_share=0.0, elastic_share=0.0)
        batch = WorldPairs(bank, config).sample(1, WORLD_SIDE, 2048, generator)
        views = [
            np.ascontiguousarray((view[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)[..., ::-1])
            for view in (batch.image0, batch.image1)
        ]
        seen = batch.valid[0].numpy()
        marks = [points[0].numpy()[seen] for points in (batch.points0, batch.points1)]
        if seen.mean() > 0.3:
            _write_marks(pairs / "world" / f"{number:03d}", *views, *marks)


def write_courtyard(pairs: Path, most: int) -> None:
    """PAIRS/courtyard/A-B of views that see twelve surface points in common."""
    yard = samples.courtyard()
    seen = _seen_points(yard)
    found = [
        (a, b, sorted(seen[a].keys() & seen[b].keys()))
        for a, b in permutations(yard.names, 2)
        if not {a, b} <= set(yard.depth_names)
    ]
    for a, b, both in evenly_chosen([pair for pair in found if len(pair[2]) >= 12], most):
        marks = [np.array([seen[name][number] for number in both]) for name in (a, b)]
        _write_marks(
            pairs / "courtyard" / f"{a}-{b}", *(cv2.imread(str(yard.image(n))) for n in (a, b)), *marks
        )


def _seen_points(yard: samples.CourtyardSample) -> dict[str, dict[int, tuple[float, float]]]:
    """View -> surface point -> pixel, from the true tracks of the COLMAP text model."""
    lines = (yard.model_dir / "images.txt").read_text(encoding="utf-8").splitlines()
    records = [line.split() for line in lines if not line.startswith("#")]
    seen = {}
    for head, points in zip(records[::2], records[1::2], strict=True):
        rows = np.array(points, np.float64).reshape(-1, 3)
        seen[Path(head[9]).stem] = {int(n): (x - 0.5, y - 0.5) for x, y, n in rows if n >= 0}
    return seen


def _write_marks(folder: Path, move: np.ndarray, fix: np.ndarray, at0: np.ndarray, at1: np.ndarray) -> None:
    folder.mkdir(parents=True)
    cv2.imwrite(str(folder / "move.png"), move)
    cv2.imwrite(str(folder / "fix.png"), fix)
    write_json(folder / LANDMARKS, {"move": at0.tolist(), "fix": at1.tolist()})


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("training", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=40, help="pairs of a kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    pairs = options.out / "pairs"
    write_groups(options.training / "aligned", pairs, options.most, rng)
    write_photos(evenly_chosen(sorted((options.training / "photos").glob("*.jpg")), options.most), pairs, rng)
    write_courtyard(pairs, options.most)
    write_worlds(options.training / "photos", pairs, options.most, options.seed)
    print(", ".join(f"{kind.name} {len(list(kind.iterdir()))}" for kind in sorted(pairs.iterdir())))


if __name__ == "__main__":
    main()
