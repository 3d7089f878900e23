"""Seconds and memory of localization by the number of photos in the model: a made landmark, no network.

    python -m benchmarks.localization 100 300 1000 [--queries 40] [--out FOLDER]
    python -m benchmarks.localization --network PHOTOS    # what the network takes for a query, beside that

The model is not mapped but written as it truly is, with the noise of a good one: cameras of the landmark
(`benchmarks.landmark`), and a point for every place of its walls that two photos or more find again. Matches
and global descriptors come from the oracle, whose time is a column of its own. A query is right within 1 % of
the scene and 1 degree. Each size is localized in a process of its own: `open` the model, `descriptors` of its
photos (once for ever), and each `query`; `alone` is one query in a process that opens the model for it. All
are seconds of processor time, which other work does not lengthen.

With --network the first photo of a folder is a query and the next 15 are those that retrieval chose: one
description, and 15 pairs of photos none of which the matcher has seen before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.landmark import Landmark, LandmarkMatcher
from benchmarks.timing import peak

CELL = 0.15  # metres of wall that count as one place, as for the oracle
NOISE = 0.3  # pixels, of keypoints
OFF = 0.01  # metres, of points
COLUMNS = ("located", "right", "open", "descriptors", "query", "oracle", "alone", "peak_gib")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=int, nargs="*", default=[100])
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", choices=["make", "all", "alone"], help="do one step here and print JSON")
    parser.add_argument("--network", type=Path, metavar="PHOTOS", help="16 real photos or more")
    chosen = parser.parse_args()
    if chosen.network:
        print("| photos | describing | pairs | matching |\n|---|---|---|---|")
        print("| " + " | ".join(map(str, network(chosen.network))) + " |")
        return
    out = chosen.out or Path(tempfile.mkdtemp(prefix="coam-localization-"))
    if chosen.row:
        print(json.dumps(STEPS[chosen.row](chosen.photos[0], chosen.queries, out)))
        return
    print("| photos | points | keypoints | queries | " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * (len(COLUMNS) + 4))
    for count in chosen.photos:
        row: dict[str, Any] = {}
        for step in STEPS:
            row |= _in_own_process(step, count, chosen.queries, out)
        cells = [count, row["points"], row["keypoints"], chosen.queries, *(row[name] for name in COLUMNS)]
        print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def _in_own_process(step: str, count: int, queries: int, out: Path) -> dict[str, Any]:
    line = [sys.executable, "-m", "benchmarks.localization", str(count), "--row", step, "--out", str(out)]
    line += ["--queries", str(queries)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def make(count: int, queries: int, out: Path) -> dict[str, Any]:
    """Write photos, the model folder of the first `count` of them, and the others as queries."""
    from coam.sfm.model_folder import ModelFolder
    from coam.store.documents import read_json

    files = ModelFolder(out / f"model-{count}")
    if not files.summary.exists():
        scene = Landmark(count + queries)
        photos = scene.write_photos(out / f"photos-{count}")
        asked = out / f"queries-{count}"
        asked.mkdir()
        for name in scene.names[count:]:
            (photos / name).rename(asked / name)
        write_true_model(scene, count, files, photos)
    summary = read_json(files.summary, dict)
    return {"points": summary["sparse_points"], "keypoints": summary["tracks"]}


def write_true_model(scene: Landmark, count: int, files: Any, photos: Path) -> None:
    """The model folder of the first `count` photos as `coam sfm` leaves it, from the truth."""
    import pycolmap

    from coam.sfm.colmap_model import model_figures
    from coam.sfm.tracks.match_graph import Keypoints, save_keypoints
    from coam.store.documents import write_sealed_json

    rng = np.random.default_rng(scene.seed)
    keys, ids, worlds = [], [], []
    for index in range(count):
        world, found = scene.surface(index)
        own = np.flatnonzero(found)
        cells = np.floor(world[own] / CELL).astype(np.int64) + (1 << 19)
        key = (cells[:, 0] << 42) | (cells[:, 1] << 21) | cells[:, 2]
        _, first = np.unique(key, return_index=True)  # one keypoint of a photo for each place
        first.sort()
        keys.append(key[first])
        ids.append(own[first])
        worlds.append(world[own][first])
    start = np.concatenate([[0], np.cumsum([len(part) for part in ids])])
    place, seen_first, number = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    seen = np.bincount(number, minlength=len(place))
    point_of = np.where(seen >= 2, np.cumsum(seen >= 2) - 1, -1)  # place -> number of its point
    track = point_of[number]  # of every keypoint
    true = np.concatenate(worlds)[seen_first]
    positions = [
        scene.project(index, true[number[start[index] : start[index + 1]]])[0] for index in range(count)
    ]
    measured = np.concatenate(positions) + rng.normal(0, NOISE, (len(number), 2))
    model = pycolmap.Reconstruction()
    poses, (_, _, sizes, focals) = scene.poses(), scene._spots
    for index, name in enumerate(scene.names[:count]):
        width, height = (int(side) for side in sizes[index])
        camera = pycolmap.Camera(
            model="SIMPLE_RADIAL",
            width=width,
            height=height,
            params=[focals[index], width / 2, height / 2, 0.0],
            camera_id=index + 1,
        )
        model.add_camera_with_trivial_rig(camera)
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(poses[name][0]), poses[name][1])
        own = slice(int(start[index]), int(start[index + 1]))
        image = pycolmap.Image(
            name=name, camera_id=index + 1, image_id=index + 1, keypoints=measured[own] + 0.5
        )
        model.add_image_with_trivial_frame(image, pose)
    image_of = np.repeat(np.arange(count), np.diff(start))
    order = np.argsort(track, kind="stable")
    order = order[track[order] >= 0]
    for own in np.split(order, np.flatnonzero(np.diff(track[order])) + 1):
        elements = [(int(image_of[node]) + 1, int(node - start[image_of[node]])) for node in own]
        line = pycolmap.Track()
        for image_id, row in elements:
            line.add_element(image_id, row)
        model.add_point3D(true[number[own[0]]] + rng.normal(0, OFF, 3), line, np.zeros(3, np.uint8))
    files.model.mkdir(parents=True)
    model.write(files.model)
    grids = tuple(scene.grid(index) for index in range(count))
    names = tuple(scene.names[:count])
    save_keypoints(Keypoints(names, grids, start, np.concatenate(ids), measured, track), files.keypoints)
    summary = {
        **model_figures(model),
        "photos": count,
        "verified_pairs": 1,
        "tracks": len(number),
        "photos_folder": f"../{photos.name}",
        "files": files.checksums(),
    }
    write_sealed_json(files.summary, summary)


class Timed(LandmarkMatcher):
    """The oracle, and the seconds it has taken."""

    def __init__(self, scene: Landmark) -> None:
        super().__init__(scene)
        self.seconds = 0.0

    def global_descriptor(self, photo: Any) -> Any:
        begun = time.process_time()
        found = super().global_descriptor(photo)
        self.seconds += time.process_time() - begun
        return found

    def match(self, a: int, b: int) -> Any:
        begun = time.process_time()
        found = super().match(a, b)
        self.seconds += time.process_time() - begun
        return found


def all_queries(count: int, queries: int, out: Path) -> dict[str, Any]:
    """Locate all queries in this process; seconds of one, in the mean."""
    from coam.sfm.localization.localize import Localizer
    from coam.sfm.photos import read_photo

    scene = Landmark(count + queries)
    matcher = Timed(scene)
    began = time.process_time()
    localizer = Localizer(out / f"model-{count}", matcher)
    opened = time.process_time() - began
    files = sorted((out / f"queries-{count}").iterdir())
    began = time.process_time()
    localizer.retrieve(files[0], 1)
    described = time.process_time() - began
    matcher.seconds = 0.0
    began = time.process_time()
    found = [localizer.locate(read_photo(file, file.name)) for file in files]
    seconds = (time.process_time() - began) / len(files)
    poses = {location.name: location.pose for location in found if location.pose is not None}
    truth = {name: scene.poses()[name] for name in poses}
    position = [np.linalg.norm(r.T @ t - truth[name][0].T @ truth[name][1]) for name, (r, t) in poses.items()]
    from coam.geometry.pose import rotation_angle

    rotation = [rotation_angle(r @ truth[name][0].T) for name, (r, _) in poses.items()]
    right = (np.array(position) < 0.01 * scene.size) & (np.array(rotation) < 1.0)
    return {
        "located": len(poses),
        "right": int(right.sum()),
        "open": round(opened, 2),
        "descriptors": round(described, 2),
        "query": round(seconds, 3),
        "oracle": round(matcher.seconds / len(files), 3),
        "peak_gib": round(peak() / 2**20, 2),
    }


def one_alone(count: int, queries: int, out: Path) -> dict[str, Any]:
    """Open the model and locate one query."""
    from coam.sfm.localization.localize import localize

    file = min((out / f"queries-{count}").iterdir())
    began = time.process_time()
    localize(out / f"model-{count}", file, LandmarkMatcher(Landmark(count + queries)))
    return {"alone": round(time.process_time() - began, 2)}


def network(folder: Path) -> tuple[str, float, int, float]:
    """Name of the folder, seconds of a description, pairs of a query, and their seconds."""
    import torch

    from coam.cli.sfm import load_for_sfm
    from coam.images.folder import list_photos
    from coam.sfm.localization.absolute_pose import LocalizeOptions

    torch.set_num_threads(1)
    query, *photos = list_photos(folder)[: LocalizeOptions.neighbours + 1]
    matcher = load_for_sfm(None, "cpu", {})
    matcher.global_descriptor(photos[0])  # the first one of a process takes longer
    began = time.process_time()
    matcher.global_descriptor(query)
    described = time.process_time()
    list(matcher.match_many((photo, query) for photo in photos))
    matched = time.process_time() - described
    return folder.name, round(described - began, 2), len(photos), round(matched, 1)


STEPS = {"make": make, "all": all_queries, "alone": one_alone}


if __name__ == "__main__":
    main()
