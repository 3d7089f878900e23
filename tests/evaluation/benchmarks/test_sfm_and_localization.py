from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.localization import (
    AACHEN,
    LOCALIZATION,
    aligned_errors,
    load_aachen,
    load_localization,
    localization_recall,
    partners,
)
from coam.evaluation.benchmarks.sfm import (
    SFM,
    compare_places,
    find_scenes,
    reconstruct_with_sift,
    sfm_page,
    sfm_text,
)
from coam.sfm.interchange.nvm import nvm_to_colmap
from support import SHARED
from support.simple_matchers import save, textured


def test_a_folder_of_photos_is_one_scene(tmp_path: Path) -> None:
    save(tmp_path / "statue" / "a.jpg", textured())
    assert find_scenes(tmp_path / "statue") == {"statue": tmp_path / "statue"}


def test_local_feature_evaluation_layout_and_folders_of_folders(tmp_path: Path) -> None:
    for scene in ("Madrid_Metropolis", "Gendarmenmarkt"):
        save(tmp_path / "lfe" / scene / "images" / "a.jpg", textured())
        save(tmp_path / "flat" / scene / "a.png", textured())
    (tmp_path / "lfe" / "Madrid_Metropolis" / "database.db").touch()
    scenes = find_scenes(tmp_path / "lfe")
    assert list(scenes) == ["Gendarmenmarkt", "Madrid_Metropolis"]
    assert scenes["Gendarmenmarkt"].name == "images"
    assert find_scenes(tmp_path / "flat")["Madrid_Metropolis"] == tmp_path / "flat" / "Madrid_Metropolis"


def test_no_photos_anywhere(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no photos in"):
        find_scenes(tmp_path)


def test_the_table_shows_failures_and_what_is_missing() -> None:
    figures = {"registered_images": 12, "sparse_points": 2900, "mean_track_length": 3.6,
               "mean_reprojection_error": 1.33, "dense_points": "needs a CUDA COLMAP",
               "places": "12 of 12"}  # fmt: skip
    report = {
        "scenes": {"HM1": {"photos": 12, "ours": figures, "SIFT": {"failure": "no model"}}},
        "protocol": "how",
        "environment": {"cores": 2},
    }
    ours, sift = sfm_text(report).splitlines()[2:]
    assert ours == "| HM1 (12 photos) | ours | 12 | 2900 | 3.600 | 1.330 | needs a CUDA COLMAP | 12 of 12 |"
    assert sift == "| HM1 (12 photos) | SIFT | X | X | X | X | X | X |"
    assert "HM1 (12 photos)" in sfm_page(report)


def test_recall_needs_both_errors_below() -> None:
    position, rotation = [0.1, 0.1, 0.3, 4.0, np.inf], [1.0, 3.0, 1.0, 9.0, np.inf]
    recall = localization_recall(position, rotation)
    assert list(recall.values()) == [0.2, 0.6, 0.8]
    assert list(recall) == ["0.25 m, 2 deg", "0.5 m, 5 deg", "5 m, 10 deg"]


def turned(degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def pose_at(centre: list[float], degrees: float) -> tuple[np.ndarray, np.ndarray]:
    return turned(degrees), -turned(degrees) @ np.asarray(centre, dtype=np.float64)


def test_errors_are_measured_in_the_frame_of_the_truth() -> None:
    """The model is the truth shrunk, turned and moved; one query is right, one is 2 m and 5 degrees off."""
    truth = {name: pose_at(c, a) for name, c, a in
             [("a", [0, 0, 0], 0), ("b", [10, 0, 0], 10), ("c", [0, 8, 0], 20), ("d", [0, 0, 6], 30),
              ("q", [5, 1, 1], 15), ("r", [4, 4, 0], 40)]}  # fmt: skip
    turn, shift = turned(50), np.array([3.0, -2.0, 7.0])

    def in_model(centre: np.ndarray, rotation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        placed, orientation = 0.5 * turn @ centre + shift, rotation @ turn.T
        return orientation, -orientation @ placed

    centres = {name: -pose[0].T @ pose[1] for name, pose in truth.items()}
    model = {name: in_model(centres[name], truth[name][0]) for name in "abcd"}
    located = {
        "q": in_model(centres["q"], truth["q"][0]),
        "r": in_model(centres["r"] + [0, 2, 0], turned(5) @ truth["r"][0]),
        "s": None,
    }
    names, position, rotation = aligned_errors(located, model, truth)
    assert names == ["q", "r", "s"]
    np.testing.assert_allclose(position[:2], [0, 2], atol=1e-6)
    np.testing.assert_allclose(rotation[:2], [0, 5], atol=1e-6)
    assert np.isinf(position[2])


def test_places_are_compared_whatever_the_frame_and_the_scale() -> None:
    truth = {f"{i}.jpg": pose_at([i, (i % 3) * 0.7, (i % 2) * 0.5], 3.0 * i) for i in range(8)}
    turn, shift = turned(70), np.array([1.0, 2.0, 3.0])

    def seen(name: str, off: float) -> tuple[np.ndarray, np.ndarray]:
        rotation, translation = truth[name]
        centre = 0.2 * turn @ (-rotation.T @ translation + [0, off, 0]) + shift
        orientation = rotation @ turn.T
        return orientation, -orientation @ centre

    model = {name: seen(name, 4.0 if name == "5.jpg" else 0.0) for name in truth if name != "7.jpg"}
    places = compare_places(model, truth)
    assert places == {"common": 7, "same": 6, "elsewhere": ["5.jpg"]}
    assert compare_places({}, truth) == {"common": 0, "same": 0, "elsewhere": []}


def test_too_few_known_photos(tmp_path: Path) -> None:
    pose = pose_at([0, 0, 0], 0)
    with pytest.raises(DataError, match="fewer than three photos"):
        aligned_errors({"q": pose}, {"a": pose}, {"a": pose, "q": pose})


def test_localization_layout_is_checked(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap")
    with pytest.raises(DataError, match="lacks images"):
        load_localization(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "sparse").mkdir()
    (tmp_path / "queries.txt").write_text("a.jpg\n")
    with pytest.raises(DataError, match="holds no COLMAP model"):
        load_localization(tmp_path)


def write_model(folder: Path, names: list[str]) -> None:
    """A COLMAP text model with one camera and these photos at known places."""
    folder.mkdir(parents=True)
    (folder / "cameras.txt").write_text("1 PINHOLE 160 120 200 200 80 60\n")
    lines = [f"{i} 1 0 0 0 {-i} 0 0 1 {name}\n\n" for i, name in enumerate(names, start=1)]
    (folder / "images.txt").write_text("".join(lines))
    (folder / "points3D.txt").write_text("")


def test_localization_layout_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap")
    write_model(tmp_path / "sparse", ["a.jpg", "b.jpg"])
    save(tmp_path / "images" / "b.jpg", textured())
    (tmp_path / "queries.txt").write_text("# queries\nb.jpg PINHOLE 160 120 200 200 80 60\n")
    save(tmp_path / "images" / "a.jpg", textured())
    scene = load_localization(tmp_path)
    assert scene.names == ["a.jpg"]
    assert scene.queries == {"b.jpg": "PINHOLE 160 120 200 200 80 60"}
    np.testing.assert_allclose(-scene.truth["b.jpg"][0].T @ scene.truth["b.jpg"][1], [2, 0, 0])
    (tmp_path / "queries.txt").write_text("c.jpg\n")
    with pytest.raises(DataError, match=r"queries.txt line 1: c.jpg is not in images/"):
        load_localization(tmp_path)


def test_aachen_layout(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap")
    with pytest.raises(DataError, match=r"lacks images_upright; get Aachen Day-Night v1.1"):
        load_aachen(tmp_path)
    write_model(tmp_path / "3D-models" / "aachen_v_1_1", ["db/1.jpg", "db/2.jpg"])
    for name in ("db/1.jpg", "db/2.jpg", "query/night/nexus5x/n.jpg"):
        save(tmp_path / "images_upright" / name, textured())
    (tmp_path / "queries").mkdir()
    listing = tmp_path / "queries" / "night_time_queries_with_intrinsics.txt"
    listing.write_text("query/night/nexus5x/n.jpg SIMPLE_RADIAL 160 120 200 80 60 0.1\n")
    scene = load_aachen(tmp_path)
    assert scene.names == ["db/1.jpg", "db/2.jpg"]
    assert scene.queries == {"query/night/nexus5x/n.jpg": "SIMPLE_RADIAL 160 120 200 80 60 0.1"}
    assert scene.truth == {}
    listing.write_text("query/night/nexus5x/gone.jpg SIMPLE_RADIAL 160 120 200 80 60 0.1\n")
    with pytest.raises(DataError, match=r"gone.jpg is not in images_upright/"):
        load_aachen(tmp_path)


def write_nvm(root: Path) -> None:
    """Aachen v1.0's files: two database photos that share one point."""
    (root / "3D-models").mkdir(exist_ok=True)
    (root / "3D-models" / "aachen_cvpr2018_db.nvm").write_text(
        "NVM_V3\n\n2\n./db/1.jpg 200 1 0 0 0 1 2 3 -0.1 0\n"
        "db/2.jpg 210 0.70710678 0 0.70710678 0 4 0 0 0 0\n\n1\n"
        "0.5 0.25 9 10 20 30 2 0 5 -3 4 1 7 10.5 -2\n\n0\n"
    )
    (root / "3D-models" / "database_intrinsics.txt").write_text(
        "db/1.jpg SIMPLE_RADIAL 160 120 200 80 60 0.1\ndb/2.jpg SIMPLE_RADIAL 160 120 210 80 60 0\n"
    )


def test_aachen_v1_0(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap")
    from coam.sfm.colmap_model import covisibility, model_poses, read_model

    write_nvm(tmp_path)
    images = tmp_path / "images" / "images_upright"
    for name in ("db/1.jpg", "db/2.jpg", "query/night/nexus5x/n.jpg"):
        save(images / name, textured())
    (tmp_path / "queries").mkdir()
    listing = tmp_path / "queries" / "night_time_queries_with_intrinsics.txt"
    listing.write_text("query/night/nexus5x/n.jpg SIMPLE_RADIAL 160 120 200 80 60 0.1\n")
    (tmp_path / "image_pairs_to_match.txt").write_text(
        "db/1.jpg db/2.jpg\ndb/2.jpg query/night/nexus5x/n.jpg\ndb/1.jpg query/day/other.jpg\n"
    )
    scene = load_aachen(tmp_path)
    assert scene.names == ["db/1.jpg", "db/2.jpg"]
    assert len(scene.pairs) == 2  # what is not asked is not matched
    assert partners(scene, "query/night/nexus5x/n.jpg", scene.names) == ["db/2.jpg"]
    model = read_model(nvm_to_colmap(scene.reference, scene.cameras, tmp_path / "given"))
    rotation, translation = model_poses(model)["db/1.jpg"]
    np.testing.assert_allclose(-rotation.T @ translation, [1, 2, 3], atol=1e-9)
    rotation, translation = model_poses(model)["db/2.jpg"]  # a quarter turn about y
    np.testing.assert_allclose(rotation, [[0, 0, 1], [0, 1, 0], [-1, 0, 0]], atol=1e-7)
    np.testing.assert_allclose(-rotation.T @ translation, [4, 0, 0], atol=1e-7)
    assert list(covisibility(model).values()) == [1]
    (point,) = model.points3D.values()
    assert point.xyz.tolist() == [0.5, 0.25, 9]
    first = next(image for image in model.images.values() if image.name == "db/1.jpg")
    assert first.points2D[0].xy.tolist() == [80 - 3, 60 + 4]  # .nvm counts from the middle of the photo
    assert list(model.cameras[first.camera_id].params) == [200, 80, 60, 0.1]
    with pytest.raises(DataError, match=r"lacks 3D-models/aachen_v_1_1; get Aachen Day-Night v1\.1"):
        load_aachen(tmp_path, release="1.1")
    with pytest.raises(ConfigError, match=r"choose 1.1 or 1.0"):
        load_aachen(tmp_path, release="2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NVM_V2\n", "does not begin with NVM_V3"),
        ("NVM_V3\nmany\n", "a count was expected"),
        ("NVM_V3\n1\na.jpg 1 2\n", "the line of a photo is damaged"),
        ("NVM_V3\n1\na.jpg 1 1 0 0 0 0 0 0 0 0\n1\n0 0 0 1 1 1 2 0 0 0 0\n", "point 1 is damaged"),
        ("NVM_V3\n1\nb.jpg 1 1 0 0 0 0 0 0 0 0\n", "no camera is given for b.jpg"),
    ],
)
def test_damaged_nvm_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.nvm").write_text(text)
    with pytest.raises(DataError, match=message):
        nvm_to_colmap(tmp_path / "a.nvm", {"a.jpg": "SIMPLE_RADIAL 16 12 20 8 6 0"}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("benchmark", "preset", "given", "wanted"),
    [
        (SFM, "paper", {}, (8192, "quantised")),
        (SFM, None, {}, (4096, "refined")),
        (SFM, "paper", {"max_matches": 99}, (99, "quantised")),
        (AACHEN, "paper", {}, (2000, None)),
        (LOCALIZATION, "default", {}, (4096, None)),
    ],
)
def test_presets_fill_what_is_not_given(benchmark, preset, given, wanted) -> None:
    values = benchmark.filled({"preset": preset, "max_matches": None, "tracks": None} | given)
    assert (values["max_matches"], values["tracks"]) == wanted
    with pytest.raises(ConfigError, match="choose default, paper"):
        benchmark.filled({"preset": "best"})


MULTIVIEW = SHARED / "data" / "multiview" / "fern.tar"


@pytest.mark.slow
@pytest.mark.skipif(not MULTIVIEW.is_file(), reason="the shared data is not on this machine")
def test_sift_registers_a_real_photo_set_and_is_not_run_twice(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(MULTIVIEW) as archive:
        first_eight = sorted(archive.getmembers(), key=lambda member: member.name)[:8]
        archive.extractall(tmp_path / "photos", members=first_eight, filter="data")
    first = reconstruct_with_sift(tmp_path / "photos", tmp_path / "out")
    assert first["registered_images"] >= 6
    assert first["sparse_points"] > 300
    database = tmp_path / "out" / "sift" / "database.db"
    made = database.stat().st_mtime_ns
    assert reconstruct_with_sift(tmp_path / "photos", tmp_path / "out") == first
    assert database.stat().st_mtime_ns == made
    next((tmp_path / "photos").rglob("*.jpg")).unlink()  # another set of photos is run again
    assert reconstruct_with_sift(tmp_path / "photos", tmp_path / "out")["registered_images"] <= 7
    assert database.stat().st_mtime_ns != made
