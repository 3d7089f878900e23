"""Known poses: points from our matches, triangulated into a COLMAP model whose poses and cameras stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from coam.geometry.alignment import Pose
from coam.geometry.coordinates import to_colmap
from coam.sfm.cameras import PhotoCameras
from coam.sfm.colmap_model import model_poses, pipeline_options
from coam.sfm.mapping.bundle_adjustment import triangulate_points
from coam.sfm.pipeline import (
    build_tracks,
    match_photos,
    propose_pairs,
    stand_upright,
    write_model_folder,
    write_summary,
)
from coam.sfm.tracks.match_graph import Keypoints
from coam.sfm.verification.rotation_cycles import CycleReport
from coam.sfm.verification.two_view import verify_pairs_with_poses
from coam.sfm.workspace import Workspace
from coam.store.journal import Pair
from coam.store.lock import folder_lock


def triangulate_known_poses(work: Workspace, pairs: Sequence[Pair] | None = None) -> dict[str, Any]:
    """Triangulate points from our matches into the poses of a COLMAP model, for example Aachen's.

    work: opened with that model as `reference`. The output is a model folder as `coam sfm` makes it, so
    `coam localize` works in it. pairs: instead of those that the options propose, by default the photos with
    most common points in the reference. Of the options, `cameras`, `cycle_error` and `mapper` are not used:
    cameras and places are those of the reference.
    """
    with folder_lock(work.files.root):
        return _triangulate_known_poses(work, pairs)


def _triangulate_known_poses(work: Workspace, pairs: Sequence[Pair] | None) -> dict[str, Any]:
    work = stand_upright(work)
    pairs = propose_pairs(work, pairs)
    poses = model_poses(work.reference)
    with closing(match_photos(work, pairs)) as matched:
        verified = verify_pairs_with_poses(
            matched, pairs, work.cameras.by_name, poses, work.options.verify, work.masks
        )
        work.say(f"{len(verified.accepted)} of {len(pairs)} pairs agree with the known poses")
        graph = build_tracks(work, verified)
        work.say(f"{graph.keypoints.track_count} tracks; triangulating")
        model = _triangulate(work.files.database, graph.keypoints, work.cameras, poses)
        write_model_folder(work, [model], graph)
        no_cycles = CycleReport({}, (), 0, 0)  # rotations are known, not measured
        return write_summary(work, [model], verified, no_cycles, graph)


def _triangulate(
    database: Path, keypoints: Keypoints, cameras: PhotoCameras, poses: Mapping[str, Pose]
) -> Any:
    """COLMAP's triangulation over our database, poses fixed."""
    import pycolmap

    model = pycolmap.Reconstruction()
    for index, camera in enumerate(cameras.cameras):
        camera.camera_id = index + 1
        model.add_camera_with_trivial_rig(camera)
    for index, name in enumerate(keypoints.names):
        points = to_colmap(keypoints.positions[keypoints.of(index)])
        image = pycolmap.Image(
            name=name, camera_id=cameras.index[name] + 1, image_id=index + 1, keypoints=points
        )
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(poses[name][0]), poses[name][1])
        model.add_image_with_trivial_frame(image, pose)
    model = triangulate_points(model, database, pipeline_options(seed=0))
    model.update_point_3d_errors()
    return model
