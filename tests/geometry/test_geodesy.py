"""Places on the earth, against another form of the ellipsoid and by turning."""

from __future__ import annotations

import numpy as np
import pytest

from coam.geometry.geodesy import earth_centred, east_north_up

EQUATOR, POLE = 6_378_137.0, 6_356_752.314245  # semi-axes of WGS 84, metres
LUND = (55.7047, 13.1910, 40.0)


@pytest.mark.parametrize(
    ("latitude", "longitude"), [(0, 0), (45, 45), (-33.9, 18.4), (64.1, -21.9), (-54.8, -68.3)]
)
def test_places_lie_on_the_ellipsoid_and_heights_stand_on_it(latitude: float, longitude: float) -> None:
    """The ellipsoid is the image of a sphere: normals are gradients of x^2 / a^2 + y^2 / a^2 + z^2 / b^2."""
    phi, theta = np.radians(latitude), np.radians(longitude)
    normal = np.array([np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)])
    axes = np.array([EQUATOR, EQUATOR, POLE])
    on_ground = axes**2 * normal / np.linalg.norm(axes * normal)
    np.testing.assert_allclose(earth_centred([[latitude, longitude, 0]]), [on_ground], atol=1e-3)
    np.testing.assert_allclose(
        earth_centred([[latitude, longitude, 250]]), [on_ground + 250 * normal], atol=1e-3
    )


@pytest.mark.parametrize("origin", [LUND, (-33.9, 18.4, 10.0), (64.1, -21.9, 0.0)])
def test_east_north_and_up_are_where_longitude_latitude_and_altitude_grow(origin) -> None:
    places = np.array(origin) + np.diag([1e-4, 1e-4, 5.0])
    north, east, up = east_north_up(places, origin)
    assert north[1] == pytest.approx(np.linalg.norm(north))
    assert 11.0 < north[1] < 11.2  # metres: a ten-thousandth of a degree is 11 m or nearly so
    assert east[0] == pytest.approx(np.linalg.norm(east))
    assert east[0] == pytest.approx(11.13 * np.cos(np.radians(origin[0])), rel=0.01)
    np.testing.assert_allclose(up, [0, 0, 5], atol=1e-6)
    np.testing.assert_allclose(east_north_up([origin], origin), 0, atol=1e-9)


def test_distances_stay_as_they_are() -> None:
    places = np.array([LUND, (55.71, 13.2, 60.0), (55.69, 13.18, 0.0)])
    here, there = east_north_up(places, LUND), earth_centred(places)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(here[i] - here[j]) == pytest.approx(np.linalg.norm(there[i] - there[j]))
