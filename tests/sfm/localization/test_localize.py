"""Locating photos in a model, against exact truth; and refusing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coam.errors import DataError
from coam.geometry.alignment import pose_errors
from coam.sfm.cameras import camera_from_spec, read_intrinsics_list
from coam.sfm.colmap_model import model_poses
from coam.sfm.interchange.hloc import read_features, read_matches
from coam.sfm.localization.absolute_pose import (
    Lifted,
    LocalizeOptions,
    locations_to_json,
    quaternion,
    write_poses,
)
from coam.sfm.localization.localize import Localizer, localize
from coam.sfm.pairs import read_pairs
from coam.sfm.photos import read_photo
from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions, load_model
from support.toy_scene import OracleMatcher, Scene


@pytest.mark.parametrize("cameras", [{"*": "SIMPLE_PINHOLE 400 304 380 200 152"}, None])
def test_queries_are_located_with_and_without_intrinsics(built, queries, matcher, truth, cameras, tmp_path):
    locations = localize(built[0], queries, matcher, cameras)
    by_name = {location.name: location for location in locations}
    assert "broken.jpg" in by_name["broken.jpg"].reason
    assert by_name["broken.jpg"].pose is None
    poses = model_poses(load_model(built[0])[0])
    located = {name: by_name[name].pose for name in ("view02.png", "view05.png")}
    errors = pose_errors({**poses, **located}, truth)
    for name in located:
        index = errors.names.index(name)
        assert errors.rotation[index] < 0.15
        assert errors.position[index] < 0.003 * errors.scene_size
        assert by_name[name].confidence > 0.8
        assert by_name[name].inliers > 200
    source = "the model's" if cameras is None else "given"
    assert {by_name[name].intrinsics for name in located} == {source}
    if cameras is None:
        assert float(by_name["view02.png"].camera.split()[3]) == pytest.approx(380, rel=0.02)
    lines = write_poses(locations, tmp_path / "poses.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["view02.png", "view05.png"]
    assert all(len(line.split()) == 8 for line in lines)
    values = json.loads(json.dumps(locations_to_json(locations)))
    assert [value["located"] for value in values] == [False, True, True]


def test_a_camera_of_its_own_must_explain_clearly_more(built, queries, matcher, monkeypatch):
    """A query with the size of the model's photos and 1.6 times their focal length: zoomed in."""
    localizer = Localizer(built[0], matcher)
    points3d = np.array([point.xyz for point in localizer.model.points3D.values()])[::3]
    rotation, translation = model_poses(localizer.model)[localizer.names[0]]
    seen = points3d @ rotation.T + translation
    points2d = 608 * seen[:, :2] / seen[:, 2:] + [199.5, 151.5]
    inside = (np.abs(points2d - [199.5, 151.5]) < [200, 152]).all(axis=1)
    lifted = Lifted(points2d[inside], points3d[inside], np.zeros(inside.sum(), np.int64))
    monkeypatch.setattr(localizer, "lift", lambda query, names: lifted)
    found = localizer.locate(read_photo(queries / "view02.png", "view02.png"))
    assert found.intrinsics == "estimated"
    assert float(found.camera.split()[3]) == pytest.approx(608, rel=0.01)
    assert np.linalg.norm(found.centre + rotation.T @ translation) < 0.02
    assert found.confidence <= 0.7  # focal length and distance explain each other


class BlindMatcher(OracleMatcher):
    """Every query shows another place: matches are random."""

    def match(self, image0, image1, keypoints0=None):
        found = super().match(image0, image1, keypoints0)
        order = np.random.default_rng(self.index(image0)).permutation(len(found))
        from dataclasses import replace

        return replace(found, points1=found.points1[order], ids1=found.ids1[order])


def test_photo_of_another_place_is_refused(built, queries, scene):
    locations = localize(built[0], queries / "view02.png", BlindMatcher(scene, keep=0.4))
    assert locations[0].pose is None
    assert "agree" in locations[0].reason or "no camera pose" in locations[0].reason
    assert locations[0].confidence == 0


def test_folder_without_model(tmp_path, matcher):
    (tmp_path / "q.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="holds no finished model"):
        localize(tmp_path, tmp_path, matcher)


def test_moved_photos_are_named(built, queries, matcher, tmp_path):
    with pytest.raises(DataError, match="say where they are with --photos"):
        localize(built[0], queries, matcher, photos=tmp_path)


def test_other_settings_are_refused(built, queries):
    other = OracleMatcher(Scene(count=7, size=(400, 304), focal=380.0, step=16.0))
    with pytest.raises(DataError, match="made with another grid"):
        localize(built[0], queries / "view02.png", other)


def test_quaternion_of_a_quarter_turn():
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(quaternion(turn), [np.sqrt(0.5), 0, 0, np.sqrt(0.5)], atol=1e-12)


class DescribingMatcher(OracleMatcher):
    """Knows which views look alike: neighbours on the arc."""

    def global_descriptor(self, image):
        angle = 0.3 * self.index(image)
        return np.array([np.cos(angle), np.sin(angle)])


def test_only_the_most_similar_photos_are_matched(built, queries, scene):
    matcher = DescribingMatcher(scene, keep=0.4)
    options = LocalizeOptions(neighbours=2)
    location = localize(built[0], queries / "view02.png", matcher, options=options)[0]
    assert set(location.matched) == {"view01.png", "view03.png"}
    assert sorted(matcher.calls) == [("view01.png", "view02.png"), ("view03.png", "view02.png")]
    stored = built[0] / "global_descriptors.npz"
    stamp = stored.stat().st_mtime_ns
    localize(built[0], queries / "view05.png", matcher, options=options)
    assert stored.stat().st_mtime_ns == stamp  # computed once per model


def test_descriptors_of_the_reconstruction_are_used_again(photos, queries, scene, tmp_path):
    """Retrieval has described all photos to propose pairs; a query is the only one left."""

    class Counting(DescribingMatcher):
        def global_descriptor(self, image):
            described.append(self.index(image))
            return super().global_descriptor(image)

    described: list[int] = []
    matcher = Counting(scene, keep=0.4)
    run_sfm(photos, tmp_path / "model", matcher, SfmOptions(pairing="retrieval", neighbours=3))
    assert described == [0, 1, 3, 4, 6]
    options = LocalizeOptions(neighbours=2)
    for query in ("view02.png", "view05.png"):
        location = localize(tmp_path / "model", queries / query, matcher, options=options)[0]
        assert len(location.matched) == 2
    assert described == [0, 1, 3, 4, 6, 2, 5]
    (tmp_path / "model" / "global_descriptors.npz").write_bytes(b"damaged")
    localize(tmp_path / "model", queries / "view05.png", matcher, options=options)
    assert described[7:] == [5, 0, 1, 3, 4, 6]


def test_hloc_locates_the_exported_queries(built, queries, matcher, truth, tmp_path):
    """As hloc's localize_sfm: keypoints to the model's points by their numbers, then PnP."""
    import pycolmap

    localize(built[0], queries, matcher, hloc=tmp_path)
    model = load_model(built[0])[0]
    listed = read_intrinsics_list(tmp_path / "queries.txt")
    assert sorted(listed) == ["view02.png", "view05.png"]  # what cannot be read is no query
    pairs = read_pairs(tmp_path / "query-pairs.txt")
    keypoints = read_features(tmp_path / "query-features.h5")
    matches = read_matches(tmp_path / "query-matches.h5", pairs)
    images = {image.name: image for image in model.images.values()}
    located = {}
    for name, camera in listed.items():
        points2d, points3d = [], []
        for (query, photo), (index, _) in matches.items():
            if query == name:
                seen = [images[photo].points2D[int(number)] for number in index[:, 1]]
                assert all(point.has_point3D() for point in seen)
                points2d.append(keypoints[name][index[:, 0]] + 0.5)  # hloc adds COLMAP's half pixel
                points3d += [model.point3D(point.point3D_id).xyz for point in seen]
        assert len(points3d) > 200
        answer = pycolmap.estimate_and_refine_absolute_pose(
            np.concatenate(points2d), np.array(points3d), camera_from_spec(camera)
        )
        pose = answer["cam_from_world"]
        located[name] = (pose.rotation.matrix(), pose.translation)
    errors = pose_errors({**model_poses(model), **located}, truth)
    for name in located:
        index = errors.names.index(name)
        assert errors.rotation[index] < 0.2
        assert errors.position[index] < 0.004 * errors.scene_size
