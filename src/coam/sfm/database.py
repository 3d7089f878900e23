"""COLMAP databases, written directly and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.geometry.coordinates import from_colmap, to_colmap
from coam.sfm.journal import Pair, replacing
from coam.sfm.keypoints import Keypoints, Links
from coam.sfm.verify import VerifiedPair


def write_database(
    path: str | Path,
    keypoints: Keypoints,
    links: Links,
    verified: Mapping[Pair, VerifiedPair],
    cameras: Sequence[Any],
    camera_of: Sequence[int],
) -> dict[str, int]:
    """Write cameras, photos, keypoints (+0.5), matches and verified two-view geometries; photo name -> COLMAP
    image id.

    keypoints: all photos in order; image ids are 1, 2, ... in that order. camera_of: index into `cameras` per
    photo. Matches that contradict the refined positions (`links.held`) are left out.
    """
    import pycolmap

    path = Path(path)
    image_ids = {name: index + 1 for index, name in enumerate(keypoints.names)}
    with replacing(path) as temporary:
        database = pycolmap.Database.open(temporary)
        try:
            with pycolmap.DatabaseTransaction(database):
                _write_images(database, keypoints, cameras, camera_of)
                for number, pair in enumerate(links.pairs):
                    _write_pair(database, image_ids, keypoints, links, number, verified[pair])
        finally:
            database.close()
        for ending in ("-wal", "-shm"):  # a killed run's: SQLite would play them into the new file
            path.with_name(path.name + ending).unlink(missing_ok=True)
    return image_ids


def _write_images(
    database: Any, keypoints: Keypoints, cameras: Sequence[Any], camera_of: Sequence[int]
) -> None:
    import pycolmap

    camera_ids = []
    for camera in cameras:
        camera_ids.append(database.write_camera(camera))
        rig = pycolmap.Rig()
        camera.camera_id = camera_ids[-1]
        rig.add_ref_sensor(camera.sensor_id)
        database.write_rig(rig)
    rig_of = {rig.ref_sensor_id.id: rig.rig_id for rig in database.read_all_rigs()}
    for index, name in enumerate(keypoints.names):
        camera_id = camera_ids[camera_of[index]]
        image_id = database.write_image(
            pycolmap.Image(name=name, camera_id=camera_id, image_id=index + 1), True
        )
        frame = pycolmap.Frame()
        frame.rig_id = rig_of[camera_id]
        frame.add_data_id(database.read_image(image_id).data_id)
        database.write_frame(frame)
        points = to_colmap(keypoints.positions[keypoints.of(index)]).astype(np.float32)
        database.write_keypoints(image_id, points.reshape(-1, 2))


def _write_pair(
    database: Any,
    image_ids: Mapping[str, int],
    keypoints: Keypoints,
    links: Links,
    number: int,
    geometry: VerifiedPair,
) -> None:
    import pycolmap

    name0, name1 = links.pairs[number]
    first, second = image_ids[name0], image_ids[name1]
    edges = links.of(number)
    held = links.held[edges]
    index = np.stack(
        [
            links.measurements.first[edges][held] - keypoints.start[first - 1],
            links.measurements.second[edges][held] - keypoints.start[second - 1],
        ],
        axis=1,
    ).astype(np.uint32)
    if len(index) == 0:
        return
    database.write_matches(first, second, index)
    record = pycolmap.TwoViewGeometry()
    record.config = pycolmap.TwoViewGeometryConfiguration(geometry.config)
    record.E, record.F, record.H = geometry.essential, geometry.fundamental, geometry.homography
    record.cam2_from_cam1 = pycolmap.Rigid3d(pycolmap.Rotation3d(geometry.rotation), geometry.translation)
    record.inlier_matches = index
    database.write_two_view_geometry(first, second, record)


def read_database(
    path: str | Path,
) -> tuple[dict[str, npt.NDArray[np.float32]], dict[Pair, npt.NDArray[np.int64]]]:
    """Keypoints (N, 2) in our pixels of every image, and verified matches (K, 2) of every pair (all, where
    unverified).
    """
    import pycolmap

    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a COLMAP database (.db)")
    try:
        database = pycolmap.Database.open(path)
    except Exception as error:  # pycolmap raises plain RuntimeError for anything sqlite dislikes
        raise DataError(f"{path}: is not a COLMAP database; give a .db file") from error
    try:
        names = {image.image_id: image.name for image in database.read_all_images()}
        keypoints = {}
        for image_id, name in names.items():
            points = np.asarray(database.read_keypoints(image_id), np.float32)
            keypoints[name] = from_colmap(points[:, :2]) if len(points) else np.zeros((0, 2), np.float32)
        matches: dict[Pair, npt.NDArray[np.int64]] = {}
        for pair_id, found in zip(*database.read_all_matches(), strict=True):
            first, second = pycolmap.pair_id_to_image_pair(pair_id)
            matches[names[first], names[second]] = np.asarray(found, np.int64)
        for pair_id, geometry in zip(*database.read_two_view_geometries(), strict=True):
            first, second = pycolmap.pair_id_to_image_pair(pair_id)
            matches[names[first], names[second]] = np.asarray(geometry.inlier_matches, np.int64).reshape(
                -1, 2
            )
    finally:
        database.close()
    return keypoints, matches
