"""Incremental mapping: photos that went astray are registered again."""

from __future__ import annotations

import numpy as np

from coam.geometry.alignment import pose_errors
from coam.sfm.colmap_model import model_poses
from coam.sfm.mapping.mapper import MapperInput, register_again
from coam.sfm.mapping.model_checks import ModelConsistency
from coam.sfm.workspace import load_model


def test_a_photo_that_went_astray_is_registered_again(built, truth):
    """The camera turned by 10 degrees comes back to its place, because the four others stand."""
    import pycolmap

    model, _ = load_model(built[0])
    image = next(model.image(i) for i in model.reg_image_ids() if model.image(i).name == "view03.png")
    turn = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([0.0, np.radians(10), 0.0])), np.zeros(3))
    image.frame.set_cam_from_world(image.camera_id, turn * image.cam_from_world())
    assert pose_errors(model_poses(model), truth).rotation[2] > 5
    answers = iter([ModelConsistency(("view03.png",)), ModelConsistency()])
    given = MapperInput(built[0] / "database.db", check=lambda model: next(answers))
    again, consistency = register_again(given, model, given.database, given.options.attempts[0])
    assert consistency.misplaced == ()
    errors = pose_errors(model_poses(again), truth)
    assert len(errors.names) == 5
    assert errors.rotation[2] < 0.2
    assert errors.position[2] < 0.01 * errors.scene_size
