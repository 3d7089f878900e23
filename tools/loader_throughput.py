"""Pairs a second that the MegaDepth loader gives: as it was, filling its cache, and from the cache.

    python tools/loader_throughput.py [--photo PHOTO.jpg] [--workers 2] [--pairs 24] [-o docs/results/loader.json]

The tree is made for the purpose, in MegaDepth's layout: photos of 1600 x 1200 pixels (JPEG, quality 92) and
depth maps of the same size (gzip, as MegaDepth's), so that decoding costs what it costs there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch
from PIL import Image

from coam import __version__, samples
from coam.data.megadepth import MegaDepthPairs
from coam.data.windows import CropOptions
from coam.evaluation.runner import environment
from coam.store.atomic import write_json

SIZE = (1600, 1200)
PHOTOS = 8
STEPS = 400_000  # of the published recipe
BATCH = 16


def write_tree(root: Path, photo: Path, photos: int = PHOTOS, size: tuple[int, int] = SIZE) -> None:
    """One scene: a picture on a plane before cameras that move sideways, all of it seen by all."""
    names = [f"Undistorted_SfM/0001/images/{k}.jpg" for k in range(photos)]
    depths = [f"phoenix/S6/zl548/MegaDepth_v1/0001/dense0/depths/{k}.h5" for k in range(photos)]
    camera = np.array([[size[0], 0, size[0] / 2], [0, size[0], size[1] / 2], [0, 0, 1.0]])
    picture = Image.open(photo).convert("RGB").resize((size[0] + 20 * photos, size[1]))
    poses = []
    rng = np.random.default_rng(0)
    for k, (name, depth) in enumerate(zip(names, depths, strict=True)):
        for path in (root / name, root / depth):
            path.parent.mkdir(parents=True, exist_ok=True)
        picture.crop((20 * k, 0, 20 * k + size[0], size[1])).save(root / name, quality=92)
        with h5py.File(root / depth, "w") as file:
            # A plane at depth 10 with the small roughness that keeps real maps from compressing to nothing.
            rough = 10 + 0.01 * rng.standard_normal((size[1], size[0])).astype(np.float32)
            file.create_dataset("depth", data=rough.astype(np.float32), compression="gzip")
        pose = np.eye(4)
        pose[0, 3] = -20.0 * k * 10 / size[0]  # 20 pixels a photo at depth 10
        poses.append(pose)

    def objects(values: list[object]) -> np.ndarray:
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array

    (root / "scene_info").mkdir()
    np.savez(
        root / "scene_info" / "0001.0.npz",
        image_paths=np.array(names, dtype=object),
        depth_paths=np.array(depths, dtype=object),
        intrinsics=objects([camera] * photos),
        poses=objects(poses),
        overlap_matrix=np.full((photos, photos), 0.6),
        angles=np.full((photos, photos), 10.0),
    )


def rate(source: MegaDepthPairs, pairs: int, batch: int, seed: int) -> float:
    """Pairs a second, of batches at 256 px with 512 points."""
    generator = torch.Generator().manual_seed(seed)
    started = time.perf_counter()
    for _ in range(pairs // batch):
        source.sample(batch, 256, 512, generator)
    return pairs / (time.perf_counter() - started)


def measure(photo: Path, workers: int, pairs: int) -> dict[str, float]:
    """The rates of the loader's ways."""
    squash = CropOptions(squash=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tree(root, photo)
        plain = MegaDepthPairs(root, workers=workers, crop=squash)
        found = {"decoded each time": rate(plain, pairs, 8, 0)}
        cached = MegaDepthPairs(root, workers=workers, crop=squash, cache="cache")
        found["filling the cache (8 photos)"] = rate(cached, 8, 8, 1)
        rate(cached, 2 * pairs, 8, 2)  # whatever was not drawn yet
        found["from the cache, squashed"] = rate(cached, 4 * pairs, 8, 3)
        crops = MegaDepthPairs(root, workers=workers, cache="cache")
        found["from the cache, crops"] = rate(crops, 4 * pairs, 8, 4)
        smaller = MegaDepthPairs(root, workers=workers, crop=squash, cache="cache", cache_side=384)
        rate(smaller, 2 * pairs, 8, 5)
        found["from a cache of 384 px, squashed"] = rate(smaller, 4 * pairs, 8, 6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photo", type=Path, help="a photo to be seen; default: the bundled one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.photo or samples.motorcycle().left, options.workers, options.pairs)
    for name, value in found.items():
        days = STEPS * BATCH / value / 86400
        print(f"{name:36s} {value:8.1f} pairs/s   {days:5.1f} days for {STEPS:,} steps of {BATCH}")
    if options.output is not None:
        content = {
            "command": f"python tools/loader_throughput.py --workers {options.workers}",
            "version": __version__, "weights": None, "environment": environment(),
            "pairs_per_second": {name: round(value, 1) for name, value in found.items()},
        }  # fmt: skip
        write_json(options.output, content, indent=1)


if __name__ == "__main__":
    main()
