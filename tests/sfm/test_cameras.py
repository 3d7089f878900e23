"""Camera intrinsics: from EXIF, given, guessed; and who shares a camera."""

from __future__ import annotations

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.sfm.cameras import (
    CameraChoice,
    camera_from_spec,
    make_cameras,
    read_intrinsics_list,
    shoots,
)
from coam.sfm.photos import Photo


def photo(name, size=(800, 600), focal35=None, camera=None):
    return Photo(name, None, size, name, focal35, camera)


def test_exif_focal_length_in_pixels_of_a_portrait_photo():
    made = make_cameras([photo("a.jpg", (600, 800), 27.0, "Acme X")], CameraChoice())
    (camera,) = made.cameras
    assert camera.mean_focal_length() == pytest.approx(27 / 36 * 800)
    assert camera.has_prior_focal_length
    assert (camera.width, camera.height) == (600, 800)
    assert made.index == {"a.jpg": 0}
    assert made.given == ()


def cameras_of(photos, **choice):
    return list(make_cameras(photos, CameraChoice(**choice)).index.values())


def test_who_shares_a_camera():
    shoot = [photo(f"IMG_{i:04d}.jpg") for i in range(4)]
    assert cameras_of(shoot) == [0, 0, 0, 0]
    assert cameras_of(shoot, sharing="none") == [0, 1, 2, 3]
    internet = [photo("23423_1.jpg"), photo("98234242.jpg"), photo("abc.jpg")]
    assert cameras_of(internet) == [0, 1, 2]
    assert cameras_of(internet, sharing="all") == [0, 0, 0]
    mixed = [
        photo("1.jpg", focal35=24.0, camera="A"),
        photo("2.jpg", focal35=24.0, camera="A"),
        photo("3.jpg", focal35=50.0, camera="A"),
    ]
    assert cameras_of(mixed) == [0, 0, 1]
    assert shoots(["a1.jpg", "a2.jpg", "a9.jpg"]) == [["a1.jpg", "a2.jpg", "a9.jpg"]]
    # identifiers of a photo site are no running numbers; one photo alone is a shoot of its own
    assert shoots(["a1.jpg", "b2.jpg", "c10.jpg", "c90.jpg", "d.jpg"]) == [["a1.jpg"], ["b2.jpg"]]


def test_every_shoot_of_a_folder_has_its_own_camera():
    walks = [*(photo(f"street/{i}.jpg") for i in (1, 2, 12)), photo("fox_1.jpg"), photo("fox_2.jpg")]
    assert cameras_of([*walks, photo("found.jpg")]) == [0, 0, 0, 1, 1, 2]


def test_given_intrinsics(tmp_path):
    listing = tmp_path / "cameras.txt"
    listing.write_text(
        "# comment\nq/1.jpg PINHOLE 800 600 700 710 400 300\n* SIMPLE_RADIAL 800 600 500 400 300 0.1\n"
    )
    given = read_intrinsics_list(listing)
    made = make_cameras([photo("q/1.jpg"), photo("x.jpg"), photo("y.jpg")], CameraChoice(given=given))
    assert made.names_by_camera() == [["q/1.jpg"], ["x.jpg", "y.jpg"]]
    assert made.given == (0, 1)
    np.testing.assert_allclose(made.by_name["q/1.jpg"].params, [700, 710, 400, 300])
    np.testing.assert_allclose(made.by_name["y.jpg"].params, [500, 400, 300, 0.1])
    with pytest.raises(ConfigError, match="is 640 x 480 pixels but its given camera is 800 x 600"):
        make_cameras([photo("x.jpg", (640, 480))], CameraChoice(given=given))
    listing.write_text("a.jpg PINHOLE 800 600 700\n")
    with pytest.raises(ConfigError, match="PINHOLE has 4 parameters"):
        make_cameras([photo("a.jpg")], CameraChoice(given=read_intrinsics_list(listing)))
    listing.write_text("a.jpg PINOLE 800 600 700\n")
    with pytest.raises(ConfigError, match="line 1: 'PINOLE 800 600 700' is no camera"):
        read_intrinsics_list(listing)
    with pytest.raises(DataError, match="no such file"):
        read_intrinsics_list(tmp_path / "none.txt")


@pytest.mark.parametrize(
    "spec",
    [
        "PINHOLE 1000000000000000000000000000000 32 50 50 20 16",
        "PINHOLE -40 -32 50 50 20 16",
        "PINHOLE 0 32 50 50 20 16",
        "PINHOLE 40 32 nan 50 20 16",
        "PINHOLE 40 32 inf 50 20 16",
        "PINHOLE 40 32 1e400 50 20 16",
        "PINHOLE 40 32 50 -50 20 16",
        "SIMPLE_PINHOLE 40 32 0 20 16",
    ],
)
def test_numbers_that_no_camera_has_are_refused(spec):
    with pytest.raises(ConfigError, match=r"is no camera|the focal length must be above 0"):
        camera_from_spec(spec)
