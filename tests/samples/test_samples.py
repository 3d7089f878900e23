"""The bundled pictures and their truth, checked against each other with numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import coam
from coam import samples
from coam.errors import ConfigError, DataError
from coam.geometry.homography import apply_homography
from coam.samples.ground_truth_maps import sample_smooth
from coam.samples.multiview import Camera


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float64)


def _colors(pixels: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Bilinear colours (N, 3)."""
    channels = [sample_smooth(pixels[..., c], points.astype(np.float64), np.inf)[0] for c in range(3)]
    return np.stack(channels, axis=-1)


def _grid(size: tuple[int, int], step: int) -> np.ndarray:
    x, y = np.meshgrid(np.arange(0, size[0], step), np.arange(0, size[1], step))
    return np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float64)


@pytest.fixture(scope="module")
def pair() -> samples.StereoSample:
    return samples.motorcycle()


@pytest.fixture(scope="module")
def yard() -> samples.CourtyardSample:
    return samples.courtyard()


@pytest.fixture(scope="module")
def model(yard: samples.CourtyardSample) -> Any:
    """The COLMAP model of the courtyard as COLMAP reads it."""
    return pytest.importorskip("pycolmap").Reconstruction(str(yard.model_dir))


def _observations(image: Any) -> tuple[np.ndarray, list[int]]:
    """Positions (N, 2) in our pixels, and ids, of the surface points that a view sees."""
    return np.array([p.xy for p in image.points2D]) - 0.5, [p.point3D_id for p in image.points2D]


def test_all_samples_together_stay_under_four_megabytes() -> None:
    folder = samples.motorcycle().folder.parent
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert 1_000_000 < total < 4_000_000


# Looking up between pixels


def test_bilinear_lookup_on_a_plane_is_exact_and_knows_its_limits() -> None:
    y, x = np.mgrid[0:4, 0:5].astype(np.float64)
    plane = 2.0 * x + 10.0 * y
    plane[3, 4] = np.nan
    points = np.array([[1.25, 0.5], [4, 2], [3.5, 2.5], [-0.1, 1], [4.01, 1], [np.nan, 1], [0, 0]])
    values, trusted = sample_smooth(plane, points, max_spread=100.0)
    assert trusted.tolist() == [True, True, False, False, False, False, True]
    np.testing.assert_allclose(values[[0, 1, 6]], [7.5, 28.0, 0.0])
    assert np.isnan(values[[2, 3, 4, 5]]).all()


def test_lookup_across_a_step_is_not_trusted() -> None:
    step = np.array([[1.0, 1.0, 9.0], [1.0, 1.0, 9.0]])
    points = np.array([[0.5, 0.5], [1.5, 0.5], [1.0, 0.0], [2.0, 1.0]])
    _, trusted = sample_smooth(step, points, max_spread=1.0)
    assert trusted.tolist() == [True, False, True, True]


# Town and box


def test_the_real_pairs_without_truth_are_all_there() -> None:
    assert [_pixels(path).shape for path in samples.town()] == [(480, 640, 3)] * 2
    assert [_pixels(path).shape for path in samples.box()] == [(223, 324, 3), (384, 512, 3)]


@pytest.mark.slow
def test_the_box_lies_in_the_heap_where_it_is_seen() -> None:
    """Corners of its label and of the photo on it, and one of its own, marked by eye to about 2 px."""
    alone = np.array([[141, 20], [139.5, 202], [279, 203], [3, 2], [122.5, 58], [150, 165]])
    heap = np.array([[186, 177], [166, 271], [243.5, 282.5], [119.5, 162.5], [174.5, 195], [175.5, 250.5]])
    found = coam.match(*samples.box()).homography()
    assert found is not None
    assert np.linalg.norm(apply_homography(found.matrix, alone) - heap, axis=1).max() < 4


# Motorcycle


def test_motorcycle_disparity_has_the_range_of_the_original(pair: samples.StereoSample) -> None:
    assert pair.size == (741, 500)
    assert _pixels(pair.left).shape == _pixels(pair.right).shape == (500, 741, 3)
    known = np.isfinite(pair.disparity)
    assert known.mean() == pytest.approx(0.9265, abs=1e-3)
    assert pair.disparity[known].min() == pytest.approx(7.19, abs=0.02)
    assert pair.disparity[known].max() == pytest.approx(59.91, abs=0.02)


def test_motorcycle_truth_beats_every_shifted_truth(pair: samples.StereoSample) -> None:
    left, right = _pixels(pair.left), _pixels(pair.right)
    points0 = _grid(pair.size, 3)
    points1, valid = pair.true_points1(points0)
    assert valid.mean() > 0.7
    colors = _colors(left, points0[valid])

    def difference(dx: float, dy: float) -> float:
        moved = points1[valid] + np.array([dx, dy], dtype=np.float32)
        return float(np.nanmedian(np.abs(_colors(right, moved) - colors).mean(axis=1)))

    true = difference(0, 0)
    assert true < 4.0
    for shift in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        assert difference(*shift) > 1.15 * true, shift
    for shift in ((4, 0), (-4, 0), (0, 4), (0, -4)):
        assert difference(*shift) > 2.0 * true, shift


def test_motorcycle_hidden_pixels_are_not_valid(pair: samples.StereoSample) -> None:
    known = np.isfinite(pair.disparity)
    hidden = known & ~pair.visible_right
    assert 0.03 < hidden.sum() / known.sum() < 0.25
    rows, columns = np.nonzero(hidden)
    points0 = np.stack([columns, rows], axis=-1)[::50]
    points1, valid = pair.true_points1(points0)
    assert not valid.any()
    left, right = _pixels(pair.left), _pixels(pair.right)
    inside = (points1[:, 0] >= 0) & (points1[:, 0] <= 740)
    covered = np.abs(_colors(right, points1[inside]) - _colors(left, points0[inside])).mean(axis=1)
    assert np.nanmedian(covered) > 12.0  # something else is there: the mask hides what it should


def test_motorcycle_points_move_by_their_disparity_only(pair: samples.StereoSample) -> None:
    rows, columns = (v[::997] for v in np.nonzero(pair.visible_right))
    points0 = np.stack([columns, rows], axis=-1).astype(np.float64)
    points1, valid = pair.true_points1(points0)
    assert valid.all()
    np.testing.assert_allclose(points1[:, 0], columns - pair.disparity[rows, columns], atol=1e-3)
    np.testing.assert_array_equal(points1[:, 1], rows.astype(np.float32))
    _, outside = pair.true_points1([[-1, 5], [741, 5], [5, 500], [np.nan, 3]])
    assert not outside.any()


# Courtyard


def test_courtyard_has_its_views(yard: samples.CourtyardSample) -> None:
    assert (len(yard.day), len(yard.night), len(yard.names)) == (12, 4, 16)
    day = [f"day_{i:02d}" for i in range(1, 13)]
    assert yard.names == (*day, *(f"night_{i:02d}" for i in range(1, 5)))
    assert len(yard.depth_names) == 4
    for path in (*yard.day, *yard.night):
        assert _pixels(path).shape == (480, 640, 3)


def test_night_is_darker_than_day_but_not_black(yard: samples.CourtyardSample) -> None:
    day = [float(_pixels(path).mean()) for path in yard.day]
    night = [float(_pixels(path).mean()) for path in yard.night]
    assert max(night) < 0.7 * min(day)
    assert np.mean(night) < 0.6 * np.mean(day)
    assert min(night) > 15
    assert all(80 < value < 170 for value in day)


def test_pictures_are_rich_in_texture(yard: samples.CourtyardSample) -> None:
    for path in yard.day:
        grey = _pixels(path).mean(axis=2)
        gradient = np.hypot(np.diff(grey, axis=1)[:-1], np.diff(grey, axis=0)[:, :-1])
        assert np.median(gradient) > 5.0, path.name
        assert grey.std() > 30.0, path.name


def test_cameras_are_exact(yard: samples.CourtyardSample) -> None:
    camera = yard.camera("day_01")
    assert (camera.width, camera.height) == (640, 480)
    assert camera.focal == (520.0, 520.0)
    assert camera.principal == (319.5, 239.5)  # COLMAP's (320, 240)
    for name in yard.names:
        pose = yard.pose(name)
        np.testing.assert_allclose(pose.rotation @ pose.rotation.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(pose.rotation) == pytest.approx(1.0)
        assert 1.2 < pose.to_world(np.zeros((1, 3)))[0, 2] < 2.1  # eye height above the paving
        assert pose.rotation[1, 2] < -0.9  # the picture's y axis points down in the world


def test_neighbouring_views_turn_by_about_eleven_degrees(yard: samples.CourtyardSample) -> None:
    forward = np.stack([yard.pose(name).rotation[2] for name in yard.names[:12]])
    turns = np.degrees(np.arccos(np.clip((forward[:-1] * forward[1:]).sum(axis=1), -1, 1)))
    assert ((turns > 5) & (turns < 20)).all()
    assert 100 < np.degrees(np.arccos(forward[0] @ forward[-1])) < 135


DEPTH_PAIRS = [("day_04", "day_06"), ("day_06", "day_09"), ("day_06", "night_02")]
DAY_PAIRS = [("day_04", "day_06"), ("day_06", "day_04"), ("day_06", "day_09")]


@pytest.mark.parametrize(("first", "second"), DEPTH_PAIRS)
def test_depth_of_one_view_predicts_the_depth_of_another(
    yard: samples.CourtyardSample, first: str, second: str
) -> None:
    for name0, name1 in ((first, second), (second, first)):
        points0 = _grid((640, 480), 4)
        points1, valid = yard.true_points1(name0, name1, points0)
        assert valid.mean() > 0.2
        depth0 = sample_smooth(yard.depth(name0), points0, np.inf)[0]
        world = yard.pose(name0).to_world(yard.camera(name0).unproject(points0, depth0))
        expected = yard.pose(name1).to_camera(world)[:, 2]
        seen = sample_smooth(yard.depth(name1), points1.astype(np.float64), np.inf)[0]
        error = np.abs(seen - expected)[valid] / seen[valid]
        assert np.median(error) < 0.002
        assert np.quantile(error, 0.95) < 0.01


@pytest.mark.parametrize(("first", "second"), DAY_PAIRS)
def test_corresponding_day_pixels_have_the_same_colours(
    yard: samples.CourtyardSample, first: str, second: str
) -> None:
    points0 = _grid((640, 480), 3)
    points1, valid = yard.true_points1(first, second, points0)
    grey0 = _colors(_pixels(yard.image(first)), points0[valid]).mean(axis=1)
    picture1 = _pixels(yard.image(second))

    def agreement(dx: float, dy: float) -> float:
        grey1 = _colors(picture1, points1[valid] + np.array([dx, dy], dtype=np.float32)).mean(axis=1)
        both = np.isfinite(grey1)
        return float(np.corrcoef(grey0[both], grey1[both])[0, 1])

    true = agreement(0, 0)
    assert true > 0.8
    # A shift of one pixel, the size of a wrong pixel convention at 2x, must show.
    assert true > max(agreement(*s) for s in ((1, 0), (-1, 0), (0, 1), (0, -1)))
    assert true > 0.15 + max(agreement(*s) for s in ((9, 0), (-9, 0), (0, 9), (0, -9)))


def test_surface_points_project_onto_their_observations(yard: samples.CourtyardSample, model: Any) -> None:
    assert len(yard.points) > 300
    assert all(point.track.length() >= 3 for point in model.points3D.values())
    for image in model.images.values():
        name = Path(image.name).stem
        observed, ids = _observations(image)
        assert len(observed) > 40, name
        world = np.stack([model.points3D[i].xyz for i in ids])
        pixels = yard.camera(name).project(yard.pose(name).to_camera(world))
        assert np.abs(pixels - observed).max() < 0.02, name
    point_id, point = next(iter(model.points3D.items()))
    for element in point.track.elements:
        assert _observations(model.images[element.image_id])[1][element.point2D_idx] == point_id


def test_surface_points_lie_on_the_depth_maps(yard: samples.CourtyardSample, model: Any) -> None:
    for image in model.images.values():
        name = Path(image.name).stem
        if name in yard.depth_names:
            observed, ids = _observations(image)
            expected = yard.pose(name).to_camera(np.stack([model.points3D[i].xyz for i in ids]))[:, 2]
            seen = sample_smooth(yard.depth(name), observed, np.inf)[0]
            assert np.median(np.abs(seen - expected) / expected) < 0.001, name


def test_pycolmap_reads_the_model_as_we_do(yard: samples.CourtyardSample, model: Any) -> None:
    assert (model.num_images(), model.num_points3D()) == (16, len(yard.points))
    np.testing.assert_allclose(yard.points, [point.xyz for _, point in sorted(model.points3D.items())])
    for image in model.images.values():
        pose = yard.pose(Path(image.name).stem)
        matrix = np.column_stack([pose.rotation, pose.translation])
        np.testing.assert_allclose(image.cam_from_world().matrix(), matrix, atol=1e-9)


def test_unknown_views_say_what_there_is(yard: samples.CourtyardSample) -> None:
    with pytest.raises(ConfigError, match="day_01"):
        yard.image("day_13")
    with pytest.raises(ConfigError, match="day_04"):
        yard.depth("day_01")


# Reading COLMAP text by hand


def _sample(folder: Path, cameras: str, images: str) -> samples.CourtyardSample:
    """A model of the views a and b, written by hand."""
    (folder / "images").mkdir()
    for name in ("a", "b"):
        shutil.copy(samples.motorcycle().left, folder / "images" / f"{name}.jpg")
    (folder / "cameras.txt").write_text(f"# c\n{cameras}\n")
    (folder / "images.txt").write_text(f"# i\n{images}\n")
    (folder / "points3D.txt").write_text("# p\n3 0.5 0 2 1 2 3 0 1 0 2 4\n4 1 2 3 1 2 3 0 1 0\n")
    return samples.CourtyardSample(folder)


CAMERA = "7 PINHOLE 100 50 80 90 50 25"
IMAGES = "1 1 0 0 0 0 0 2 7 a.jpg\n50.5 25.5 3\n2 2 0 0 2 1 0 2 7 b.jpg\n"


def test_reading_a_written_model(tmp_path: Path) -> None:
    sample = _sample(tmp_path, CAMERA, IMAGES)
    camera = sample.camera("a")
    assert camera == Camera(100, 50, (80.0, 90.0), (49.5, 24.5)) == sample.camera("b")
    pixels = camera.project(np.array([[0.5, 1.0, 2.0], [0, 0, -1.0]]))
    np.testing.assert_allclose(pixels, [[69.5, 69.5], [np.nan, np.nan]])
    back = camera.unproject(np.array([[69.5, 69.5]]), np.array([2.0]))
    np.testing.assert_allclose(back, [[0.5, 1.0, 2.0]])
    np.testing.assert_allclose(sample.pose("a").rotation, np.eye(3))
    # A quarter turn about z, by a quaternion that is not of unit length.
    np.testing.assert_allclose(sample.pose("b").rotation, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(sample.pose("b").to_world(np.zeros((1, 3))), [[0, 1, -2]], atol=1e-12)
    np.testing.assert_allclose(sample.points, [[0.5, 0, 2], [1, 2, 3]])


@pytest.mark.parametrize(
    ("cameras", "images"),
    [
        ("7 PINHOLE 10 ten 1 1 5 5", IMAGES),
        ("7 PINHOLE 10 10 1 1 5", IMAGES),
        ("8 PINHOLE 100 50 80 90 50 25", IMAGES),
        (CAMERA, "1 1 0 0 0 0 0 0 a.jpg\n"),
        (CAMERA, "1 1 0 0 zero 0 0 0 7 a.jpg\n"),
    ],
)
def test_broken_models_are_refused_with_one_line(tmp_path: Path, cameras: str, images: str) -> None:
    with pytest.raises(DataError, match="damaged") as caught:
        _sample(tmp_path, cameras, images).camera("a")
    assert "\n" not in str(caught.value)


def test_a_missing_model_is_refused_with_one_line(tmp_path: Path) -> None:
    sample = _sample(tmp_path, CAMERA, IMAGES)
    (tmp_path / "cameras.txt").unlink()
    with pytest.raises(DataError, match=r"cameras\.txt"):
        sample.pose("a")
