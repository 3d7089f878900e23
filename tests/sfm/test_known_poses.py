"""Triangulation into known poses."""

from __future__ import annotations

import numpy as np
import pytest

from coam.errors import DataError
from coam.sfm.colmap_model import model_poses
from coam.sfm.known_poses import triangulate_known_poses
from coam.sfm.localization.localize import localize
from coam.sfm.workspace import SfmOptions, load_model, open_workspace
from support.toy_scene import true_model


def test_triangulation_keeps_known_poses_and_locates(built, photos, queries, matcher, truth, tmp_path):
    """The poses of a finished model are taken as known; its points are made anew."""
    work = open_workspace(photos, tmp_path, matcher, reference=built[0] / "sparse" / "0")
    summary = triangulate_known_poses(work)
    assert summary["registered_images"] == 5
    assert summary["sparse_points"] > 700
    assert summary["mean_reprojection_error"] < 0.5
    assert summary["warnings"] == []
    assert (tmp_path / "refined.h5").is_file()  # the default tracks, as everywhere
    before, after = model_poses(load_model(built[0])[0]), model_poses(load_model(tmp_path)[0])
    for name in before:
        np.testing.assert_allclose(before[name][0], after[name][0], atol=1e-9)
        np.testing.assert_allclose(before[name][1], after[name][1], atol=1e-9)
    located = localize(tmp_path, queries / "view02.png", matcher)[0]
    reference = localize(built[0], queries / "view02.png", matcher)[0]
    np.testing.assert_allclose(located.centre, reference.centre, atol=0.02)


def test_refined_tracks_bring_triangulated_points_nearer_to_the_truth(
    photos, matcher, truth, tmp_path, scene
):
    """Into the true poses: a point of the room lies on one of its surfaces."""
    reference = true_model(photos, truth, tmp_path / "true")
    error = {}
    for tracks in ("quantised", "merged", "refined"):
        options = SfmOptions(tracks=tracks)
        triangulate_known_poses(
            open_workspace(photos, tmp_path / "out", matcher, options, reference=reference)
        )
        model, _ = load_model(tmp_path / "out")
        distances = []
        for image_id in model.reg_image_ids():
            image = model.image(image_id)
            world = np.array([model.point3D(p.point3D_id).xyz for p in image.get_observation_points2D()])
            number = scene.names.index(image.name)
            true = scene.surface(number, scene.project(number, world))
            distances.append(np.linalg.norm(true - world, axis=1))
        error[tracks] = float(np.nanmedian(np.concatenate(distances)))
    assert error["refined"] < 0.6 * error["merged"] < 0.6 * error["quantised"]
    assert error["refined"] < 0.004  # the room is some 6 wide


def test_what_is_wrong_with_a_reference_is_one_line(photos, matcher, truth, tmp_path):
    with pytest.raises(DataError, match="holds no COLMAP model; give a folder with cameras"):
        open_workspace(photos, tmp_path / "out", matcher, reference=tmp_path)
    reference = true_model(photos, truth, tmp_path / "true")
    with pytest.raises(DataError, match="holds none of the 5 photos of the model"):
        open_workspace(tmp_path, tmp_path / "out", matcher, reference=reference)
    work = open_workspace(photos, tmp_path / "out", matcher, SfmOptions(pairing="model"), reference=reference)
    with pytest.raises(DataError, match=r"gives no pairs of its photos \(20 with most common points each\)"):
        triangulate_known_poses(work)  # it has no points
