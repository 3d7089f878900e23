"""Places on the earth (WGS 84) as metres to the east, north and up of an origin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
SEMI_MAJOR = 6_378_137.0  # metres
FLATTENING = 1 / 298.257223563


def earth_centred(places: npt.ArrayLike) -> Array:
    """Earth-centred metres (N, 3) of latitude, longitude (degrees) and altitude (metres, ellipsoid)."""
    latitude, longitude, altitude = np.asarray(places, np.float64).reshape(-1, 3).T
    phi, theta = np.radians(latitude), np.radians(longitude)
    squared = FLATTENING * (2 - FLATTENING)
    across = SEMI_MAJOR / np.sqrt(1 - squared * np.sin(phi) ** 2)
    return np.stack(
        [
            (across + altitude) * np.cos(phi) * np.cos(theta),
            (across + altitude) * np.cos(phi) * np.sin(theta),
            (across * (1 - squared) + altitude) * np.sin(phi),
        ],
        axis=1,
    )


def east_north_up(places: npt.ArrayLike, origin: npt.ArrayLike) -> Array:
    """Metres (N, 3) to the east, north and up of `origin` (3,); both latitude, longitude and altitude."""
    latitude, longitude, _ = np.asarray(origin, np.float64)
    phi, theta = np.radians(latitude), np.radians(longitude)
    east = [-np.sin(theta), np.cos(theta), 0.0]
    north = [-np.sin(phi) * np.cos(theta), -np.sin(phi) * np.sin(theta), np.cos(phi)]
    up = [np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)]
    return np.asarray((earth_centred(places) - earth_centred(origin)) @ np.array([east, north, up]).T)
