"""Places of many photos: fewer tracks, leg by leg, resumed; and places stay apart."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from coam.geometry.alignment import pose_errors
from coam.sfm.colmap_model import model_poses, read_model
from coam.sfm.mapping import mapper
from coam.sfm.mapping.mapper import Legs, MapperInput, run_mapper
from coam.sfm.mapping.model_checks import ModelConsistency
from coam.sfm.mapping.options import LargePlaceOptions, MapperOptions
from coam.sfm.pipeline import (
    build_tracks,
    map_photos,
    match_photos,
    model_key,
    propose_pairs,
    run_sfm,
    verify_matches,
)
from coam.sfm.tracks.match_graph import well_spread_tracks
from coam.sfm.workspace import SfmOptions, open_workspace
from support.toy_scene import LookAlikes, OracleMatcher, Scene

LARGE = LargePlaceOptions(min_photos=20, tracks_per_photo=120, tracks_per_pair=60, cells=4, photos_per_leg=12)
OPTIONS = SfmOptions(pairing="sequential", tracks="merged", mapper=MapperOptions(large=LARGE))


@pytest.fixture(scope="module")
def arc():
    return Scene(count=30, size=(400, 304), focal=380.0)


@pytest.fixture(scope="module")
def arc_photos(arc, tmp_path_factory):
    return arc.write_photos(tmp_path_factory.mktemp("arc"))


@pytest.fixture(scope="module")
def finished(arc, arc_photos, tmp_path_factory):
    """The folder of a model of 30 photos mapped as a large place, and what was said."""
    folder, said = tmp_path_factory.mktemp("large"), []
    run_sfm(arc_photos, folder, OracleMatcher(arc, keep=0.4), OPTIONS, said.append)
    return folder, said


def _stages(folder, photos, scene, say=lambda line: None, options=OPTIONS):
    """Workspace, verified pairs, match graph and key of a folder whose matches lie there."""
    work = open_workspace(photos, folder, OracleMatcher(scene, keep=0.4), options, say)
    pairs = propose_pairs(work)
    matched = match_photos(work, pairs)
    verified, _ = verify_matches(work, matched)
    return work, verified, build_tracks(work, verified), model_key(work.options, pairs, verified)


def test_all_cameras_are_right_and_all_matches_give_points(finished, arc, arc_photos, tmp_path):
    """Cameras to 1 % and 1 degree, points as many as where every pair's tracks find the cameras."""
    folder, said = finished
    truth = {name: (arc.rotations[i], arc.translations[i]) for i, name in enumerate(arc.names)}
    model = read_model(folder / "sparse/0")
    errors = pose_errors(model_poses(model), truth)
    assert len(errors.names) == 30
    assert errors.position.max() < 0.01 * errors.scene_size
    assert errors.rotation.max() < 1.0
    assert [line for line in said if line.endswith("photos mapped")] == [
        "12 of the first 12 of 30 photos mapped",
        "24 of the first 24 of 30 photos mapped",
        "30 of the first 30 of 30 photos mapped",
    ]
    assert not list(folder.glob("legs-*"))
    (tmp_path / "usual").mkdir()
    for name in ("matches.h5", "verified.h5"):
        (tmp_path / "usual" / name).write_bytes((folder / name).read_bytes())
    usual = replace(OPTIONS, mapper=MapperOptions())
    summary = run_sfm(arc_photos, tmp_path / "usual", OracleMatcher(arc, keep=0.4), usual)
    assert model.num_points3D() == pytest.approx(summary["sparse_points"], rel=0.03)


def test_cameras_are_found_from_few_tracks_of_every_photo_and_pair(finished, arc, arc_photos):
    folder, _ = finished
    _, verified, graph, _ = _stages(folder, arc_photos, arc)
    with closing(verified.matched):
        few = well_spread_tracks(graph, 120, 60, 4)
    used = np.unique(np.concatenate([few.nodes(pair) for pair in range(len(few.pairs))], axis=1))
    image = graph.keypoints.image_of[used]
    of_photo = np.bincount(image, minlength=30)
    everything = np.bincount(graph.keypoints.image_of[graph.keypoints.tracks >= 0], minlength=30)
    assert of_photo.min() >= 120
    assert of_photo.sum() < 0.5 * everything.sum()
    for pair in range(len(graph.pairs)):
        first, second = graph.nodes(pair)
        whole = (graph.keypoints.tracks[first] == graph.keypoints.tracks[second]).sum()
        assert len(few.nodes(pair)[0]) >= min(60, whole)
    # a photo's part that has tracks keeps some: spread, where the longest alone would be
    cells = graph.keypoints.cells(4)
    for photo in range(30):
        own = graph.keypoints.of(photo)
        there = np.unique(cells[own][graph.keypoints.tracks[own] >= 0])
        assert len(np.unique(cells[used[image == photo]])) >= len(there) - 1


def test_a_run_that_stopped_goes_on_with_its_legs(finished, arc, arc_photos, tmp_path, monkeypatch):
    """Stopped in the third leg: the first is not mapped again, the second, damaged since, is; then the rest.

    The model is the same to the last bit.
    """
    for name in ("matches.h5", "verified.h5"):
        (tmp_path / name).write_bytes((finished[0] / name).read_bytes())
    mapped, original = [], mapper._map

    def count(given, database, attempt, begin=None, names=()):
        mapped.append(len(names))
        if len(mapped) == 3:
            raise KeyboardInterrupt
        return original(given, database, attempt, begin, names)

    monkeypatch.setattr(mapper, "_map", count)
    work, verified, graph, key = _stages(tmp_path, arc_photos, arc)
    with pytest.raises(KeyboardInterrupt), closing(verified.matched):
        map_photos(work, verified, graph, key)
    assert mapped == [12, 24, 30]
    legs = sorted((work.files.legs(key) / "0/0-all").iterdir())
    assert [leg.name for leg in legs] == ["000012", "000024"]
    (legs[1] / "images.bin").write_bytes((legs[1] / "images.bin").read_bytes()[:1000])
    work, verified, graph, key = _stages(tmp_path, arc_photos, arc)
    with closing(verified.matched):
        map_photos(work, verified, graph, key)
    assert mapped[3:] == [24, 30]
    for name in ("cameras.bin", "images.bin", "points3D.bin"):
        assert (tmp_path / "sparse/0" / name).read_bytes() == (finished[0] / "sparse/0" / name).read_bytes()
    assert not work.files.legs(key).exists()


def test_large_places_that_look_alike_are_not_mixed(tmp_path):
    """Twelve pairs between them pass verification; two models come, each with all its photos in place."""
    scene = Scene(count=8, size=(400, 304), focal=380.0)
    folder = scene.write_photos(tmp_path / "photos")
    large = replace(LARGE, min_photos=4, photos_per_leg=3)
    options = SfmOptions(tracks="merged", mapper=MapperOptions(large=large))
    run_sfm(folder, tmp_path / "out", LookAlikes(scene, keep=0.4), options)
    models = [read_model(path) for path in sorted((tmp_path / "out/sparse").iterdir())]
    assert sorted(sorted(model_poses(model)) for model in models) == [scene.names[:4], scene.names[4:]]
    truth = {name: (scene.rotations[i], scene.translations[i]) for i, name in enumerate(scene.names)}
    for model in models:
        errors = pose_errors(model_poses(model), truth)
        assert errors.position.max() < 0.01 * errors.scene_size
        assert errors.rotation.max() < 1.0


@pytest.mark.parametrize(("few", "attempts"), [(0.2, ["0-database"]), (0.0, ["0-database", "0-strong"])])
def test_for_a_few_misplaced_photos_a_large_place_is_not_mapped_again(built, scene, tmp_path, few, attempts):
    """One of five photos is misplaced for good."""
    names = sorted(model_poses(read_model(built[0] / "sparse/0")))
    strong = tmp_path / "strong.db"
    strong.write_bytes((built[0] / "database.db").read_bytes())
    options = MapperOptions(large=LargePlaceOptions(few_misplaced=few))
    given = MapperInput(
        built[0] / "database.db",
        options,
        check=lambda model: ModelConsistency((names[0],)),
        legs=Legs(tmp_path / "legs", names),
    )
    models = run_mapper(given, [given.database, strong])
    assert sorted(path.name for path in (tmp_path / "legs").iterdir()) == attempts
    assert models[0].num_reg_images() == 5
