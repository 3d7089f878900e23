"""Dense points of a finished model folder: a coloured PLY with normals, and their number in summary.json.

Kill it at any time and call it again: what is done lies in the folder dense/ of the model until all is done.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coam.caches import LRUCache
from coam.errors import ConfigError, DataError
from coam.images import load_image
from coam.progress import progress
from coam.sfm.colmap_model import read_model
from coam.sfm.dense.colmap_stereo import fuse_with_colmap, require_dense_stereo
from coam.sfm.dense.depth_map import (
    AgreementOptions,
    AlignmentOptions,
    DepthMap,
    agreed_depth,
    align_depth,
    enlarged,
    grey_of,
    load_depth_map,
    save_depth_map,
    surface_normals,
)
from coam.sfm.dense.fusion import FusionOptions, fuse
from coam.sfm.dense.pair_depth import PairDepthOptions, triangulate_warp
from coam.sfm.dense.ply import write_points
from coam.sfm.dense.undistorted import undistort_photos
from coam.sfm.dense.views import NeighbourOptions, View, neighbours_of, undistorted_views
from coam.sfm.dense.warps import StoredWarp, WarpMatcher, find_warps, record_to_warp, warp_pairs
from coam.sfm.matching.stamps import recorded_text, text_digest
from coam.sfm.model_folder import ModelFolder
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.store.atomic import atomic_folder, require_space, write_text
from coam.store.checksums import file_digest
from coam.store.documents import write_sealed_json
from coam.store.journal import PairJournal
from coam.store.lock import folder_lock

DenseMethod = Literal["warps", "colmap"]
_KEPT_MAPS = 24  # depth maps and photos held at once while points are fused
Say = Callable[[str], None]


@dataclass(frozen=True)
class DenseOptions:
    """How dense points are made."""

    size: int = 1200  # pixels: photos are shrunk to this long side, and have a depth for every pixel of it
    neighbours: NeighbourOptions = field(default_factory=NeighbourOptions)
    triangulation: PairDepthOptions = field(default_factory=PairDepthOptions)
    agreement: AgreementOptions = field(default_factory=AgreementOptions)
    alignment: AlignmentOptions = field(default_factory=AlignmentOptions)
    fusion: FusionOptions = field(default_factory=FusionOptions)


def add_dense_points(
    output: str | Path,
    photos: str | Path,
    matcher: WarpMatcher | None,
    method: DenseMethod = "warps",
    options: DenseOptions | None = None,
    say: Say = lambda line: None,
    show_progress: bool = False,
    workers: Workers = HERE,
    load: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Dense points of the largest model of a finished model folder; gives its summary with their number.

    Writes sparse/0/dense.ply, so that a model that is built again loses the dense points of the old one.
    method: "warps" takes `matcher`; "colmap" is COLMAP's stereo, which needs CUDA. The folder dense/ is
    removed at the end. workers: find warps, where `load` makes the matcher in one (picklable), and depth
    maps; these are fused in this process.
    """
    if method == "colmap":
        require_dense_stereo()
    files, options = ModelFolder(output), options or DenseOptions()
    if files.read_summary() is None:
        raise DataError(f"{files.summary}: is missing or damaged; run the same command again")
    with folder_lock(files.root):
        return _add_dense_points(
            files, Path(photos), matcher, method, options, say, show_progress, workers, load
        )


def _add_dense_points(
    files: ModelFolder,
    photos: Path,
    matcher: WarpMatcher | None,
    method: DenseMethod,
    options: DenseOptions,
    say: Say,
    show_progress: bool,
    workers: Workers,
    load: Callable[[], Any] | None,
) -> dict[str, Any]:
    summary, key = files.read_summary() or {}, _key(files.model, method, options)
    if summary.get("dense_key") == key and files.dense_points.is_file():
        return summary
    begun = time.monotonic()
    if method == "colmap":
        count = fuse_with_colmap(files, photos)
    else:
        if matcher is None or not hasattr(matcher, "warp"):
            raise ConfigError("dense points need a matcher with warps; this one finds single matches only")
        turns = summary.get("turned", {})
        count = _from_warps(files, photos, turns, key, matcher, options, say, show_progress, workers, load)
    seconds = time.monotonic() - begun
    summary["dense_points"], summary["dense_key"] = count, key
    summary["dense_seconds"] = round(seconds, 1)
    summary["files"] = files.checksums()
    write_sealed_json(files.summary, summary)
    shutil.rmtree(files.dense, ignore_errors=True)
    say(f"{seconds / max(1, summary['registered_images']):.1f} s per photo for dense points")
    return summary


def _key(model: Path, method: str, options: DenseOptions) -> str:
    """What dense points are made from."""
    digests = [file_digest(model / f"{name}.bin") for name in ("cameras", "images", "points3D")]
    return text_digest("\n".join([*digests, method, recorded_text(options)]))


def _from_warps(
    files: ModelFolder,
    photos: Path,
    turns: Mapping[str, int],
    key: str,
    matcher: WarpMatcher,
    options: DenseOptions,
    say: Say,
    show_progress: bool,
    workers: Workers,
    load: Callable[[], Any] | None,
) -> int:
    """Warps, depth maps, points; gives their number."""
    undistorted, maps = files.dense / "undistorted", files.dense / "depth"
    marker = files.dense / "key"
    if not marker.is_file() or marker.read_text(encoding="utf-8") != key:
        for old in (undistorted, maps):  # of another model; warps know themselves what they were made from
            shutil.rmtree(old, ignore_errors=True)
        write_text(marker, key)
    if not undistorted.is_dir():
        with atomic_folder(undistorted) as temporary:
            undistort_photos(files.model, photos, temporary, options.size, turns)
    views = undistorted_views(undistorted, turns)
    others = neighbours_of(read_model(files.model), options.neighbours)
    pairs = warp_pairs(others, options.neighbours.count)
    side = int(getattr(getattr(matcher, "config", None), "resolution", options.size)) // 2
    say(f"dense warps of {len(pairs)} pairs of {len(views)} photos")
    journal = find_warps(matcher, views, pairs, files.dense / "warps.h5", side, show_progress, workers, load)
    try:
        maps.mkdir(exist_ok=True)
        missing = [name for name in views if load_depth_map(_map_path(maps, name)) is None]
        task = _depth_maps(missing, views, others, journal, options)
        done = len(views) - len(missing)
        with progress("depth maps", len(views), done, show_progress, "photos") as bar:
            for name, depth in workers.run(task):
                path = _map_path(maps, name)
                require_space(path, 1 << 24)
                save_depth_map(depth, path)
                bar.advance()
    finally:
        journal.close()
    return _write_points(files.dense_points, views, others, maps, options, show_progress)


def _map_path(folder: Path, name: str) -> Path:
    return folder / f"{text_digest(name)}.npz"


_Job = tuple[View, list[tuple[View, StoredWarp]]]  # a view, and the warps that lead away from it


def _depth_maps(
    names: Sequence[str],
    views: Mapping[str, View],
    others: Mapping[str, Sequence[str]],
    journal: PairJournal,
    options: DenseOptions,
) -> Task:
    """The depth maps of the views `names`, from all the warps that lead away from each."""

    def warped(name: str) -> list[str]:
        return [other for other in others[name] if (name, other) in journal]

    def job(name: str) -> _Job:
        warps = (record_to_warp(journal.read((name, other)), views[other].size) for other in warped(name))
        return views[name], [(views[other], warp) for other, warp in zip(warped(name), warps, strict=True)]

    files = {name: view.file for name, view in views.items()}
    return Task(partial(_finding_depth, options), names, 1, job, files, lambda name: [name, *warped(name)])


def _finding_depth(options: DenseOptions) -> Work:
    """What a worker does with views and their warps."""
    greys: LRUCache[str, Any] = LRUCache(_KEPT_MAPS)

    def find(jobs: Iterable[_Job], paths: Mapping[str, Path]) -> Iterator[tuple[str, DepthMap]]:
        def grey(view: View) -> Any:
            return greys.get(view.name, lambda: grey_of(load_image(paths[view.name]).rgb))

        for view, warps in jobs:
            yield view.name, _depth_map(view, warps, grey, options)

    return find


def _depth_map(
    view: View,
    warps: Sequence[tuple[View, StoredWarp]],
    grey: Callable[[View], Any],
    options: DenseOptions,
) -> DepthMap:
    """The depth map of one view from warps to others, the best neighbours first."""
    own = grey(view)
    if not warps:
        nothing = np.zeros(own.shape, np.float32)
        return DepthMap(nothing, np.zeros((*own.shape, 3), np.float32))
    found = [
        triangulate_warp(view, other, warp.points, warp.certainty, options.triangulation)
        for other, warp in warps
    ]
    depth = enlarged(agreed_depth(found, options.agreement), own.shape)
    sources = [(other, grey(other)) for other, _ in warps[: options.alignment.sources]]
    depth = align_depth(depth, view, own, sources, options.alignment)
    return DepthMap(depth, surface_normals(depth, view))


def _write_points(
    target: Path,
    views: dict[str, View],
    others: dict[str, list[str]],
    maps: Path,
    options: DenseOptions,
    show_progress: bool,
) -> int:
    depths: LRUCache[str, DepthMap] = LRUCache(_KEPT_MAPS)
    photos: LRUCache[str, npt.NDArray[np.uint8]] = LRUCache(_KEPT_MAPS)

    def depth_map(name: str) -> DepthMap:
        found = depths.get(name, lambda: _read_map(_map_path(maps, name)))
        return found

    def colours(name: str) -> npt.NDArray[np.uint8]:
        return photos.get(name, lambda: load_image(views[name].file).rgb)

    parts = fuse(views, others, depth_map, colours, options.fusion)

    def shown() -> Iterator[Any]:
        with progress("fusing points", len(views), 0, show_progress, "photos") as bar:
            for part in parts:
                yield part
                bar.advance()

    return write_points(target, shown())


def _read_map(path: Path) -> DepthMap:
    found = load_depth_map(path)
    if found is None:
        raise DataError(f"{path}: was damaged while in use; run the same command again")
    return found
