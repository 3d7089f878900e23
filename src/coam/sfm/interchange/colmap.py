"""COLMAP databases, written directly and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError, import_extra
from coam.geometry.coordinates import from_colmap, to_colmap
from coam.sfm.cameras import CameraChoice, PhotoCameras, make_cameras
from coam.sfm.photos import Photo, read_photo
from coam.sfm.tracks.match_graph import MatchGraph
from coam.sfm.verification.two_view import VerifiedPair
from coam.store.atomic import atomic_write
from coam.store.journal import Pair
from coam.types import Matches


def write_database(
    path: str | Path, graph: MatchGraph, geometries: Mapping[Pair, VerifiedPair], cameras: PhotoCameras
) -> None:
    """Write cameras, photos, keypoints (+0.5), matches and two-view geometries.

    Camera ids are 1, 2, ... in the order of `cameras`, image ids in the order of `graph.keypoints`. Matches
    that contradict the refined positions (`graph.inlier`) are left out.
    """
    import pycolmap

    path, keypoints = Path(path), graph.keypoints
    image_of = {name: index for index, name in enumerate(keypoints.names)}
    with atomic_write(path) as temporary:
        with pycolmap.Database.open(temporary) as database, pycolmap.DatabaseTransaction(database):
            positions = [keypoints.positions[keypoints.of(index)] for index in range(len(keypoints.names))]
            _write_images(database, keypoints.names, positions, cameras)
            for number, pair in enumerate(graph.pairs):
                images = np.array([image_of[name] for name in pair])
                index = np.stack(graph.nodes(number), axis=1) - keypoints.start[images]
                if len(index):
                    _write_pair(database, images + 1, index.astype(np.uint32), geometries[pair])
        _remove_logs(path)


def write_matches(
    path: str | Path,
    matches: Mapping[Pair, Matches],
    cameras: CameraChoice | None = None,
    verify: bool = True,
    max_error: float = 4.0,
) -> None:
    """Write matches of any pairs, (name0, name1) -> `Matches`, as a new COLMAP database for any mapper.

    Matches that were looked at once share keypoints by grid id, at the mean of their positions; others by
    position. cameras: as for `coam sfm`; by default from EXIF where the photos are still there, else guessed.
    verify: also write two-view geometries, with inliers within `max_error` pixels, from which COLMAP maps.
    """
    pycolmap = import_extra("pycolmap", "sfm")
    path = Path(path)
    merged = merge_keypoints(matches)
    names = list(merged.positions)
    number = {name: index + 1 for index, name in enumerate(names)}
    made = make_cameras([_photo(name, matches) for name in names], cameras or CameraChoice())
    settings = pycolmap.TwoViewGeometryOptions()
    settings.ransac.max_error, settings.ransac.random_seed = max_error, 0
    settings.detect_watermark = False  # sub-pixel offsets of identical framings look like a watermark
    with atomic_write(path) as temporary:
        with pycolmap.Database.open(temporary) as database, pycolmap.DatabaseTransaction(database):
            _write_images(database, names, list(merged.positions.values()), made)
            for pair, index in merged.index.items():
                if not len(index):
                    continue
                images = [number[name] for name in pair]
                database.write_matches(*images, index)
                if verify:
                    both = [made.by_name[name] for name in pair], [merged.positions[name] for name in pair]
                    given = [
                        part for camera, own in zip(*both, strict=True) for part in (camera, to_colmap(own))
                    ]
                    geometry = pycolmap.estimate_two_view_geometry(*given, index, settings)
                    database.write_two_view_geometry(*images, geometry)
        _remove_logs(path)


@dataclass(frozen=True)
class MergedKeypoints:
    """Keypoints that matches of many pairs share."""

    positions: dict[str, npt.NDArray[np.float64]]  # photo name -> (N, 2) our pixels
    index: dict[Pair, npt.NDArray[np.uint32]]  # pair -> (K, 2) matching keypoints, each at most once


def merge_keypoints(matches: Mapping[Pair, Matches]) -> MergedKeypoints:
    """The keypoints of all photos: matches with one grid id, or one position, are of one keypoint."""
    numbers: dict[str, dict[Any, int]] = {name: {} for pair in sorted(matches) for name in pair}
    uses: dict[str, list[npt.NDArray[np.float64]]] = {
        name: [] for name in numbers
    }  # rows: number, x, y, weight
    index: dict[Pair, npt.NDArray[np.uint32]] = {}
    for pair, found in matches.items():
        on_grid = found.meta.get("looks") == 1 and found.grid0 is not None and found.grid1 is not None
        sides = (found.points0, found.ids0, found.grid0), (found.points1, found.ids1, found.grid1)
        columns = []
        for name, (points, ids, grid) in zip(pair, sides, strict=True):
            own = numbers[name]
            keys: list[Any] = [tuple(point) for point in points.round(2).tolist()]
            if on_grid:
                keys = [(grid, identity) for identity in ids.tolist()]
            columns.append(np.array([own.setdefault(key, len(own)) for key in keys], np.int64))
            weight = np.maximum(found.scores, 1e-3)[:, None]
            uses[name].append(np.concatenate([columns[-1][:, None], points, weight], axis=1))
        index[pair] = _one_to_one(np.stack(columns, axis=1), found.scores)
    positions = {}
    for name, rows in uses.items():
        used = np.concatenate(rows)
        own_number, weight = used[:, 0].astype(np.int64), used[:, 3]
        total = np.bincount(own_number, weight)
        mean = [np.bincount(own_number, weight * used[:, axis]) / total for axis in (1, 2)]
        positions[name] = np.stack(mean, axis=1)
    return MergedKeypoints(positions, index)


def _one_to_one(index: npt.NDArray[np.int64], scores: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The best match of every keypoint: rows of `index` (K, 2) in which neither side stands twice."""
    ordered = index[np.argsort(-scores, kind="stable")]
    for side in (0, 1):
        ordered = ordered[np.sort(np.unique(ordered[:, side], return_index=True)[1])]
    return ordered.astype(np.uint32)


def _photo(name: str, matches: Mapping[Pair, Matches]) -> Photo:
    """What is known of a photo: its size, and what EXIF says where the matched file is still there."""
    sizes, files = set(), set()
    for pair, found in matches.items():
        for side in (0, 1):
            if pair[side] == name:
                sizes.add((found.size0, found.size1)[side])
                files.add(found.meta.get(f"image{side}"))
    if len(sizes) > 1:
        raise DataError(
            f"{name}: has several sizes ({', '.join(map(str, sorted(sizes)))}); give one photo one name"
        )
    for file in files:
        if file and Path(file).is_file():
            return read_photo(Path(file), name)
    return Photo(name, Path(name), sizes.pop(), "")


def _remove_logs(path: Path) -> None:
    for ending in ("-wal", "-shm"):  # a killed run's: SQLite would play them into the new file
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _write_images(
    database: Any, names: Sequence[str], positions: Sequence[npt.NDArray[Any]], cameras: PhotoCameras
) -> None:
    """Cameras with their rigs, photos with their frames and keypoints (N, 2)."""
    import pycolmap

    camera_ids = []
    for camera in cameras.cameras:
        camera_ids.append(database.write_camera(camera))
        rig = pycolmap.Rig()
        camera.camera_id = camera_ids[-1]
        rig.add_ref_sensor(camera.sensor_id)
        database.write_rig(rig)
    rig_of = {rig.ref_sensor_id.id: rig.rig_id for rig in database.read_all_rigs()}
    for index, (name, own) in enumerate(zip(names, positions, strict=True)):
        camera_id = camera_ids[cameras.index[name]]
        image_id = database.write_image(
            pycolmap.Image(name=name, camera_id=camera_id, image_id=index + 1), True
        )
        frame = pycolmap.Frame()
        frame.rig_id = rig_of[camera_id]
        frame.add_data_id(database.read_image(image_id).data_id)
        database.write_frame(frame)
        points = to_colmap(own).astype(np.float32)
        database.write_keypoints(image_id, points.reshape(-1, 2))


def _write_pair(
    database: Any, images: npt.NDArray[np.int64], index: npt.NDArray[np.uint32], geometry: VerifiedPair
) -> None:
    import pycolmap

    database.write_matches(*images, index)
    record = pycolmap.TwoViewGeometry()
    record.config = pycolmap.TwoViewGeometryConfiguration(geometry.config)
    record.E, record.F, record.H = geometry.essential, geometry.fundamental, geometry.homography
    record.cam2_from_cam1 = pycolmap.Rigid3d(pycolmap.Rotation3d(geometry.rotation), geometry.translation)
    record.inlier_matches = index
    database.write_two_view_geometry(*images, record)


def read_database(
    path: str | Path,
) -> tuple[dict[str, npt.NDArray[np.float32]], dict[Pair, npt.NDArray[np.int64]]]:
    """Keypoints (N, 2) in our pixels of every image, and (inlier) matches (K, 2) of every pair."""
    import pycolmap

    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a COLMAP database (.db)")
    try:
        opened = pycolmap.Database.open(path)
    except Exception as error:  # pycolmap raises plain RuntimeError for anything sqlite dislikes
        raise DataError(f"{path}: is not a COLMAP database; give a .db file") from error
    with opened as database:
        names = {image.image_id: image.name for image in database.read_all_images()}
        keypoints = {}
        for image_id, name in names.items():
            points = np.asarray(database.read_keypoints(image_id), np.float32)
            keypoints[name] = from_colmap(points[:, :2]) if len(points) else np.zeros((0, 2), np.float32)
        found = dict(zip(*database.read_all_matches(), strict=True))
        for pair_id, geometry in zip(*database.read_two_view_geometries(), strict=True):
            found[pair_id] = geometry.inlier_matches
    matches: dict[Pair, npt.NDArray[np.int64]] = {}
    for pair_id, index in found.items():
        first, second = pycolmap.pair_id_to_image_pair(pair_id)
        matches[names[first], names[second]] = np.asarray(index, np.int64).reshape(-1, 2)
    return keypoints, matches
