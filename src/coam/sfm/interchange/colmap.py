"""COLMAP databases, written directly and read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.geometry.coordinates import from_colmap, to_colmap
from coam.sfm.cameras import PhotoCameras
from coam.sfm.tracks.match_graph import Keypoints, MatchGraph
from coam.sfm.verification.two_view import VerifiedPair
from coam.store.atomic import atomic_write
from coam.store.journal import Pair


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
            _write_images(database, keypoints, cameras)
            for number, pair in enumerate(graph.pairs):
                images = np.array([image_of[name] for name in pair])
                index = np.stack(graph.nodes(number), axis=1) - keypoints.start[images]
                if len(index):
                    _write_pair(database, images + 1, index.astype(np.uint32), geometries[pair])
        for ending in ("-wal", "-shm"):  # a killed run's: SQLite would play them into the new file
            path.with_name(path.name + ending).unlink(missing_ok=True)


def _write_images(database: Any, keypoints: Keypoints, cameras: PhotoCameras) -> None:
    import pycolmap

    camera_ids = []
    for camera in cameras.cameras:
        camera_ids.append(database.write_camera(camera))
        rig = pycolmap.Rig()
        camera.camera_id = camera_ids[-1]
        rig.add_ref_sensor(camera.sensor_id)
        database.write_rig(rig)
    rig_of = {rig.ref_sensor_id.id: rig.rig_id for rig in database.read_all_rigs()}
    for index, name in enumerate(keypoints.names):
        camera_id = camera_ids[cameras.index[name]]
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
