"""Pairs with truth that the probability of `coam register` is fitted to; the table's are others.

    python tools/make_registration_pairs.py TRAINING OUT [--most 40] [--seed 1]
    python tools/calibrate_registration.py OUT --on TABLE/pairs

TRAINING holds what tools/make_training_data.py writes: aligned/KIND/GROUP/*.jpg (training groups: the table
shows none of their places), photos/, and multiview/rgbd_kitchen with depth. Written below OUT/pairs:
- the aligned kinds: two photos of a group, one seen through a random homography;
- photo: one photo twice, one of them another sensor's (tones bent and turned round) behind a homography;
- elastic: the same, with waves of 2 to 10 px in place of the homography, so that a local model is right;
- courtyard: views of the bundled courtyard of which at most one is in the table; surface points that both see
  are the truth;
- kitchen: frames with measured depth, close to each other and far.
Scenes with depth have no right transform unless the camera hardly moved.
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
from make_warp_benchmark import write_pair as write_dense
from registration_checks import other_sensor

from coam import samples
from coam.data.photo_bank import aligned_groups, evenly_chosen
from coam.evaluation.benchmarks.registration import HOMOGRAPHY, LANDMARKS
from coam.evaluation.benchmarks.warp import HIDDEN, OUTSIDE, VISIBLE
from coam.geometry.coordinates import cell_centres
from coam.geometry.depth import intrinsics_matrix, project_by_depth, relative_pose
from coam.store.documents import write_json

ALIGNED = {"season": 1.0, "thermal": 1.0, "exposures": 0.4, "day_night": 0.4}  # kind -> share of --most
JITTERS = (0.1, 0.18, 0.25)  # of the made homographies: how far corners move, in sides
GAPS = (1, 2, 4, 7)  # frames of the kitchen between the two of a pair
SEEN = 0.02  # relative difference of depths up to which a surface point is seen and not hidden


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


def write_kitchen(frames: Path, pairs: Path, most: int) -> None:
    """PAIRS/kitchen/A-B of frames with depth, by the layout of `coam eval warp`."""
    camera = np.loadtxt(frames / "intrinsics.txt")
    matrix = intrinsics_matrix(
        torch.tensor([[camera[0, 0], camera[1, 1], camera[0, 2], camera[1, 2]]])
    ).float()
    names = sorted(path.name.split(".")[0] for path in frames.glob("*.color.jpg"))
    chosen = [(names[i], names[i + gap]) for gap in GAPS for i in range(0, len(names) - gap, 3)]
    for first, second in evenly_chosen(chosen, most):
        depths = [_depth(frames / f"{name}.depth.png") for name in (first, second)]
        poses = [
            torch.from_numpy(np.linalg.inv(np.loadtxt(frames / f"{name}.pose.txt"))[:3]).float()[None]
            for name in (first, second)
        ]
        height, width = depths[0].shape[-2:]
        pixels = cell_centres(width, height, 1)[None]
        found = project_by_depth(pixels, depths[0], matrix, depths[1], matrix, relative_pose(*poses))
        state = torch.zeros(height * width, dtype=torch.uint8)
        for mask, value in ((found.outside, OUTSIDE), (found.occluded, HIDDEN), (found.valid, VISIBLE)):
            state[mask[0]] = value
        if (state == VISIBLE).float().mean() < 0.2:
            continue
        points = torch.where(found.known[0].unsqueeze(1), found.points1[0], torch.nan)
        photos = frames / f"{first}.color.jpg", frames / f"{second}.color.jpg"
        truth = points.view(height, width, 2).numpy(), state.view(height, width).numpy()
        write_dense(pairs / "kitchen" / f"{first}-{second}", photos, truth)


def _depth(path: Path) -> torch.Tensor:
    raw = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    return torch.from_numpy(np.where((raw > 0) & (raw < 65535), raw / 1000, 0).astype(np.float32))[None]


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
    write_kitchen(options.training / "multiview" / "rgbd_kitchen", pairs, options.most)
    print(", ".join(f"{kind.name} {len(list(kind.iterdir()))}" for kind in sorted(pairs.iterdir())))


if __name__ == "__main__":
    main()
