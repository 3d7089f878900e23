"""Dense points of the bundled courtyard, judged by its true depth.

    python tools/courtyard_dense.py OUT [--photos FOLDER]

Makes OUT/model with dense points (what is there already is not made again) and prints the table of
docs/sfm.md; writes OUT/points.png, the points as two photos see them. --photos: a folder with the sixteen
photos under their names, some of which may lie on their side; by default they are as bundled.

The model is moved onto the true cameras. Four photos have true depth. A point is judged in those of them
that show the place without a depth edge within a pixel: it is right within 1 % of the true depth, wrong in
front of that or of the sky; behind it is something the photo does not show. A point that is wrong for any
photo is wrong. Completeness is the share of the true surface in these photos that has a point within 1 % of
its depth.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import minimum_filter
from scipy.spatial import cKDTree

from coam.geometry.alignment import align_poses
from coam.matcher import load_matcher
from coam.samples import CourtyardSample, courtyard
from coam.samples.multiview import interpolated_depth
from coam.sfm.cameras import CameraChoice
from coam.sfm.colmap_model import model_poses
from coam.sfm.dense.dense_points import add_dense_points
from coam.sfm.dense.ply import read_points
from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions, load_model

TOLERANCE = 0.01  # of the true depth
EDGE = 2  # pixels around what is not sky, in which a point may be either
SAMPLED = 40_000  # places of the true surface at which completeness is measured
Array = npt.NDArray[Any]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--photos", type=Path)
    chosen = parser.parse_args()
    out, yard = chosen.out, courtyard()
    photos = chosen.photos or out / "photos"
    if chosen.photos is None:
        photos.mkdir(parents=True, exist_ok=True)
        for path in [*yard.day, *yard.night]:
            shutil.copy(path, photos / path.name)
    matcher = load_matcher(max_matches=4096, resolution=640, looks="once")  # the size of the pictures
    run_sfm(photos, out / "model", matcher, SfmOptions(cameras=CameraChoice(sharing="all")), print)
    summary = add_dense_points(out / "model", photos, matcher, say=print, show_progress=True)
    found = read_points(out / "model" / "sparse" / "0" / "dense.ply")
    truth = {yard.image(n).name: (yard.pose(n).rotation, yard.pose(n).translation) for n in yard.names}
    turned = set(summary.get("turned", {}))
    poses = {n: p for n, p in model_poses(load_model(out / "model")[0]).items() if n not in turned}
    scale, rotation, translation = align_poses(poses, truth, sorted(poses))
    world = scale * found.points.astype(np.float64) @ rotation.T + translation
    right, wrong = judge(yard, world)
    judged = int((right | wrong).sum())
    share, complete = right.sum() / max(judged, 1), completeness(yard, world)
    print("| dense points | times the sparse ones | judged | within 1 % | completeness | seconds per photo |")
    print("|---|---|---|---|---|---|")
    seconds = summary["dense_seconds"] / summary["registered_images"]
    print(
        f"| {len(world):,} | {len(world) / summary['sparse_points']:.1f} | {judged:,} | {100 * share:.1f} % "
        f"| {100 * complete:.1f} % | {seconds:.1f} |"
    )
    Image.fromarray(draw(yard, world, found.colours, right, wrong)).save(out / "points.png")


def judge(yard: CourtyardSample, world: Array) -> tuple[Array, Array]:
    """Which points (N,) are right, and which wrong, by the photos with true depth."""
    right, wrong = np.zeros(len(world), bool), np.zeros(len(world), bool)
    for name in yard.depth_names:
        local = yard.pose(name).to_camera(world)
        camera = yard.camera(name)
        pixels = camera.project(local)
        with np.errstate(invalid="ignore"):
            inside = ((pixels >= 0) & (pixels <= (camera.width - 1, camera.height - 1))).all(axis=1)
        index = np.flatnonzero(inside)
        depth, certain = interpolated_depth(yard.depth(name), pixels[index])
        off = np.where(certain, local[index, 2] / depth - 1, np.nan)
        with np.errstate(invalid="ignore"):
            right[index] |= np.abs(off) <= TOLERANCE
            wrong[index] |= off < -TOLERANCE
        sky = minimum_filter(np.isnan(yard.depth(name)), 2 * EDGE + 1)
        x, y = np.rint(pixels[index]).astype(int).T
        wrong[index] |= sky[y, x]
    return right & ~wrong, wrong


def completeness(yard: CourtyardSample, world: Array) -> float:
    """Share of the true surface that has a point within the tolerance."""
    tree, generator, near = cKDTree(world), np.random.default_rng(0), []
    for name in yard.depth_names:
        depth = yard.depth(name)
        rows, columns = np.nonzero(np.isfinite(depth))
        chosen = generator.choice(len(rows), min(len(rows), SAMPLED // len(yard.depth_names)), replace=False)
        pixels = np.stack([columns[chosen], rows[chosen]], axis=1).astype(float)
        own = depth[rows[chosen], columns[chosen]].astype(float)
        surface = yard.pose(name).to_world(yard.camera(name).unproject(pixels, own))
        near.append(tree.query(surface)[0] <= TOLERANCE * own)
    return float(np.concatenate(near).mean())


def draw(yard: CourtyardSample, world: Array, colours: Array, right: Array, wrong: Array) -> Array:
    """Points as two photos see them, beside the photos; below, right ones green and wrong ones red."""
    judged = np.full((len(world), 3), 90, np.uint8)
    judged[right], judged[wrong] = (60, 170, 80), (220, 50, 40)
    names = (yard.depth_names[0], yard.depth_names[2])
    rows = []
    for shown in (colours, judged):
        row = [seen(yard, name, world, shown) for name in names]
        rows.append(np.concatenate(row, axis=1))
    photos = [np.asarray(Image.open(yard.image(name)).convert("RGB")) for name in names]
    return np.concatenate([np.concatenate(photos, axis=1), *rows], axis=0)


def seen(yard: CourtyardSample, name: str, world: Array, colours: Array) -> Array:
    """The points as one photo sees them, the nearest in front."""
    camera = yard.camera(name)
    local = yard.pose(name).to_camera(world)
    pixels = np.nan_to_num(camera.project(local), nan=-1.0)
    x, y = np.rint(pixels).astype(int).T
    inside = (x >= 0) & (y >= 0) & (x < camera.width) & (y < camera.height)
    order = np.flatnonzero(inside)[np.argsort(-local[inside, 2], kind="stable")]
    picture = np.full((camera.height, camera.width, 3), 255, np.uint8)
    picture[y[order], x[order]] = colours[order]
    return picture


if __name__ == "__main__":
    main()
