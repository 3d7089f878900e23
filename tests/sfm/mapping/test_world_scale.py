"""A model in metres: GPS positions with errors and wrong ones, distances between clicked points."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from coam.errors import ConfigError, DataError
from coam.geometry.geodesy import earth_centred, east_north_up
from coam.images import load_image
from coam.sfm.colmap_model import model_poses, read_model
from coam.sfm.mapping.world_scale import from_distances, from_gps, read_distances
from coam.sfm.pipeline import place_in_world
from coam.sfm.workspace import SfmOptions, check_options, open_workspace

LUND = (55.7047, 13.1910, 40.0)


def test_one_degree_is_a_known_length():
    np.testing.assert_allclose(earth_centred([[0, 0, 0]]), [[6378137.0, 0, 0]])
    np.testing.assert_allclose(earth_centred([[90, 0, 10]])[0, 2], 6356752.314 + 10, atol=1e-3)
    # published lengths of a degree at 45 degrees: 111,132 m of latitude, 78,847 m of longitude
    north = east_north_up([[45.5, 7, 0], [44.5, 7, 0]], [45, 7, 0])
    assert np.diff(north[:, 1])[0] == pytest.approx(-111_132, abs=5)
    east = east_north_up([[45, 7.05, 0]], [45, 7, 0])
    assert east[0, 0] == pytest.approx(78_847 * 0.05, abs=2)
    np.testing.assert_allclose(east_north_up([LUND], LUND), 0, atol=1e-9)
    np.testing.assert_allclose(east_north_up([[*LUND[:2], 45.0]], LUND), [[0, 0, 5]], atol=1e-6)


def degrees_of(metres, origin=LUND):
    """Latitude, longitude, altitude of metres (N, 3) near an origin, to a millimetre over 100 m."""
    step = 1e-5
    moved = [np.add(origin, d) for d in ([step, 0, 0], [0, step, 0], [0, 0, step])]
    jacobian = east_north_up(moved, origin).T / step
    return np.asarray(origin) + np.linalg.solve(jacobian, np.asarray(metres).T).T


@pytest.fixture
def model(built):
    return read_model(built[0] / "sparse" / "0")


def gps_of(model, noise=0.0, seed=0):
    """GPS positions as if the model were 10 m a unit, standing on its z axis."""
    names = sorted(model_poses(model))
    centres = np.array([-r.T @ t for r, t in (model_poses(model)[name] for name in names)])
    metres = 10 * np.stack([centres[:, 0], centres[:, 2], -centres[:, 1]], axis=1)
    metres += np.random.default_rng(seed).normal(0, noise, metres.shape)
    return dict(zip(names, map(tuple, degrees_of(metres)), strict=True))


def test_gps_gives_scale_and_north(model):
    before = model_poses(model)
    world = from_gps(model, gps_of(model))
    assert world.scale == pytest.approx(10, rel=1e-3)
    up = world.rotation @ np.array([0.0, -1.0, 0.0])
    np.testing.assert_allclose(up, [0, 0, 1], atol=1e-3)
    assert world.report["agreeing"] == 5
    world.apply(model)
    after = model_poses(model)

    def distance(poses):
        (r0, t0), (r1, t1) = poses["view00.png"], poses["view06.png"]
        return np.linalg.norm(r0.T @ t0 - r1.T @ t1)

    assert distance(after) / distance(before) == pytest.approx(10, rel=1e-3)
    assert model.compute_mean_reprojection_error() < 1.0


def test_one_wrong_position_is_left_out(model):
    places = gps_of(model, noise=0.3)
    name = sorted(places)[2]
    places[name] = (places[name][0] + 0.01, places[name][1], places[name][2])  # a kilometre off
    world = from_gps(model, places)
    assert world.scale == pytest.approx(10, rel=0.05)
    assert world.report["agreeing"] == 4
    assert world.report["median_error_metres"] < 1


def test_positions_that_do_not_do_are_refused(model):
    places = gps_of(model)
    few = dict(list(places.items())[:3])
    with pytest.raises(DataError, match=r"3 photos of the model have a GPS position; at least 4"):
        from_gps(model, few)
    generator = np.random.default_rng(0)
    wild = {name: tuple(degrees_of(generator.normal(0, 3000, (1, 3)))[0]) for name in places}
    with pytest.raises(DataError, match="do not fit the model"):
        from_gps(model, wild)
    names = sorted(places)
    line = {name: (LUND[0] + 1e-4 * i, *LUND[1:]) for i, name in enumerate(names)}
    with pytest.raises(DataError, match=r"do not fit the model|lie on a line"):
        from_gps(model, line)


def test_distances_between_clicked_points_and_between_cameras(built, model, scene, tmp_path):
    """Two places of the made room, clicked in three photos: the true scale is that of the room."""
    world = scene.surface(0, np.array([[200.0, 150.0], [150.0, 160.0]]))
    lines = []
    for label, point in zip("ab", world, strict=True):
        for index in (0, 1, 3):
            x, y = scene.project(index, point[None])[0]
            lines.append(f"view{index:02d}.png {x} {y} {label}")
    true = float(np.linalg.norm(world[0] - world[1]))
    cameras = float(np.linalg.norm(scene.centres[0] - scene.centres[6]))
    path = tmp_path / "distances.txt"
    path.write_text("\n".join(["# clicked", *lines, "", f"a b {true}", f"view00.png view06.png {cameras}"]))
    found = from_distances(model, read_distances(path))
    assert found.report["largest_relative_difference"] < 0.02
    found.apply(model)
    poses = model_poses(model)
    (r0, t0), (r1, t1) = poses["view01.png"], poses["view04.png"]
    expected = np.linalg.norm(scene.centres[1] - scene.centres[4])
    assert np.linalg.norm(r0.T @ t0 - r1.T @ t1) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("view00.png 10 a\n", "line 1: 'view00.png 10 a' is no distance"),
        ("view00.png x 3 a\n", "line 1"),
        ("view00.png 3 3 a\n", "holds no distance"),
        ("a b -2\n", "line 1"),
        ("a b nan\n", "line 1"),
    ],
)
def test_bad_distances_are_one_line(tmp_path, text, line):
    path = tmp_path / "distances.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=line):
        read_distances(path)


def test_unknown_points_are_named(model, tmp_path):
    path = tmp_path / "distances.txt"
    path.write_text("view00.png 10 10 a\na nowhere 2.0\n")
    with pytest.raises(DataError, match="a: is shown in 1 photos of the model"):
        from_distances(model, read_distances(path))
    path.write_text("view00.png nowhere 2.0\n")
    with pytest.raises(DataError, match="nowhere: is neither"):
        from_distances(model, read_distances(path))
    with pytest.raises(ConfigError, match="choose one"):
        check_options(SfmOptions(georeference=True, distances=str(path)))


def with_gps(folder, places):
    """The photos of a folder as JPEG files with GPS positions."""
    for path in sorted(folder.glob("*.png")):
        exif = Image.Exif()
        latitude, longitude, altitude = places[path.name]

        def parts(value):
            value = abs(value)
            return int(value), int(value * 60 % 60), float(value * 3600 % 60)

        exif[0x8825] = {
            1: "N" if latitude >= 0 else "S",
            2: parts(latitude),
            3: "E" if longitude >= 0 else "W",
            4: parts(longitude),
            5: b"\x00",
            6: altitude,
        }
        with Image.open(path) as picture:
            picture.save(path, exif=exif)


def test_from_the_photos_to_world_json(built, photos, matcher, model, tmp_path):
    folder = shutil.copytree(photos, tmp_path / "photos")
    places = gps_of(model)
    with_gps(folder, places)
    read = load_image(folder / "view03.png").gps
    np.testing.assert_allclose(read, places["view03.png"], atol=1e-6)
    work = open_workspace(folder, tmp_path / "model", matcher, SfmOptions(georeference=True))
    (tmp_path / "model").mkdir(exist_ok=True)
    place_in_world(work, [model])
    report = json.loads((tmp_path / "model" / "world.json").read_text())["0"]
    assert report["metres_per_unit"] == pytest.approx(10, rel=1e-3)
    assert report["origin"]["latitude"] == pytest.approx(55.7, abs=0.01)
    lines: list[str] = []
    bare = open_workspace(photos, tmp_path / "model", matcher, SfmOptions(georeference=True), lines.append)
    place_in_world(bare, [model])
    assert "model 0 stays without a scale: 0 photos of the model have a GPS position" in lines[-1]
    assert not (tmp_path / "model" / "world.json").exists()


def test_southern_and_western_places_are_negative(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    with_gps(tmp_path, {"a.png": (-33.8568, -151.2153, 5.0)})
    np.testing.assert_allclose(load_image(tmp_path / "a.png").gps, (-33.8568, -151.2153, 5.0), atol=1e-6)
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: (91, 0, 0), 3: "E", 4: (10, 0, 0)}
    with Image.open(tmp_path / "a.png") as picture:
        picture.save(tmp_path / "b.png", exif=exif)
    assert load_image(tmp_path / "b.png").gps is None
