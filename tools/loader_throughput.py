"""CPU time of a pair in the MegaDepth loader: photos decoded each time, and from its cache.

    python tools/loader_throughput.py [--photo PHOTO.jpg] [--pairs 16] [-o docs/results/loader.json]

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
from docs_tables import Result
from PIL import Image

from coam import __version__, samples
from coam.data.megadepth import MegaDepthPairs
from coam.data.windows import CropOptions

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


def cost(source: MegaDepthPairs, pairs: int, seed: int, batch: int = 8) -> float:
    """CPU seconds of a pair, of batches at 256 px with 512 points."""
    generator = torch.Generator().manual_seed(seed)
    started = time.process_time()
    for _ in range(pairs // batch):
        source.sample(batch, 256, 512, generator)
    return (time.process_time() - started) / pairs


def measure(photo: Path, pairs: int) -> dict[str, float]:
    """CPU seconds a pair of the loader's ways."""
    squash = CropOptions(squash=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tree(root, photo)
        found = {"photos decoded each time": cost(MegaDepthPairs(root), pairs, 0)}
        names = {
            640: "from the cache of 640 px, squashed to 256 (the recipe)",
            384: "from a cache of 384 px, squashed",
        }
        for side, name in names.items():
            cached = MegaDepthPairs(root, crop=squash, cache="cache", cache_side=side)
            cost(cached, 4 * pairs, 1)  # fills it
            found[name] = cost(cached, 4 * pairs, 2)
        cached = MegaDepthPairs(root, cache="cache")
        found["from the cache of 640 px, random crops"] = cost(cached, 4 * pairs, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photo", type=Path, help="a photo to be seen; default: the bundled one")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, seconds in measure(options.photo or samples.motorcycle().left, options.pairs).items():
        rows.append([name, f"{1000 * seconds:.0f}", f"{STEPS * BATCH * seconds / 86400:.1f}"])
        print(rows[-1], flush=True)
    if options.output is not None:
        columns = ["loader", "CPU ms a pair", f"core-days for {STEPS:,} steps of {BATCH}"]
        Result("python tools/loader_throughput.py", __version__, {}, columns, rows).save(options.output)


if __name__ == "__main__":
    main()
