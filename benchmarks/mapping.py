"""Time, memory and right cameras of a reconstruction by the number of photos: a made landmark, no network.

    python -m benchmarks.mapping 100 500 1500 [--out FOLDER] [--workers 2]

The matches come from an oracle (`benchmarks.landmark`), so what is measured is everything behind matching.
Each size runs in a process of its own; stages are in seconds of processor time, which other work does not
lengthen. FOLDER keeps the runs: what was killed goes on. A camera is right within 1 % of the scene and 1
degree. Tracks are merged, not refined: there is nothing in the photos to align.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.landmark import Landmark, LandmarkMatcher
from benchmarks.timing import peak

COLUMNS = ("pairs", "matching", "verification", "tracks", "mapping", "cpu", "wall", "peak_gib")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=int, nargs="*", default=[100])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="of verification and of the mapper")
    parser.add_argument("--mapper", default=None, help="incremental or global")
    parser.add_argument("--row", action="store_true", help="run one size here and print JSON")
    chosen = parser.parse_args()
    out = chosen.out or Path(tempfile.mkdtemp(prefix="coam-mapping-"))
    if chosen.row:
        print(json.dumps(run(chosen.photos[0], out, chosen.workers, chosen.mapper)))
        return
    print("| photos | registered | right | points | " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * (len(COLUMNS) + 4))
    for count in chosen.photos:
        row = _in_own_process(count, out, chosen)
        cells = [row["photos"], row["registered"], row["right"], row["points"], *(row[c] for c in COLUMNS)]
        print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def _in_own_process(count: int, out: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    line = [sys.executable, "-m", "benchmarks.mapping", str(count), "--row", "--out", str(out)]
    line += ["--workers", str(chosen.workers)]
    line += ["--mapper", chosen.mapper] if chosen.mapper else []
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def run(count: int, out: Path, workers: int, mapper: str | None = None) -> dict[str, Any]:
    """Reconstruct a landmark of `count` photos; processor seconds of what was not there yet."""
    from coam.geometry.alignment import pose_errors
    from coam.sfm.colmap_model import model_poses
    from coam.sfm.mapping.options import MapperName, MapperOptions
    from coam.sfm.pipeline import (
        build_tracks,
        map_photos,
        match_photos,
        model_key,
        propose_pairs,
        verify_matches,
    )
    from coam.sfm.workspace import SfmOptions, open_workspace

    scene = Landmark(count)
    photos = out / f"photos-{count}"
    if not photos.exists():
        scene.write_photos(photos)
    mapping = MapperOptions(threads=workers)
    if mapper is not None:
        mapping = replace(mapping, mapper=cast("MapperName", mapper))
    options = SfmOptions(tracks="merged", workers=workers, mapper=mapping)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    work = open_workspace(photos, out / f"model-{count}", LandmarkMatcher(scene), options, tell)
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = time.process_time()
        yield
        seconds[stage] = round(time.process_time() - start, 1)
        tell(f"{stage}: {seconds[stage]} s, peak {peak() / 2**20:.2f} GiB")

    began = time.monotonic()
    pairs = propose_pairs(work)
    with timed("matching"):
        journal = match_photos(work, pairs)
    with closing(journal) as matched:
        with timed("verification"):
            verified, _ = verify_matches(work, matched)
        key = model_key(work.options, pairs, verified)
        with timed("tracks"):
            graph = build_tracks(work, verified)
        with timed("mapping"):
            models = map_photos(work, verified, graph, key)
    errors = pose_errors(model_poses(models[0]), scene.poses(), scene.size)
    right = (errors.position < 0.01 * scene.size) & (errors.rotation < 1.0)
    return {
        "photos": count,
        "registered": models[0].num_reg_images(),
        "right": int(np.count_nonzero(right)),
        "points": models[0].num_points3D(),
        "pairs": len(pairs),
        **seconds,
        "cpu": round(sum(seconds.values()), 1),
        "wall": round(time.monotonic() - began, 1),
        "peak_gib": round(peak() / 2**20, 2),
    }


if __name__ == "__main__":
    main()
