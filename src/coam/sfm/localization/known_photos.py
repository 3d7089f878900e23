"""The photos of a model as localization knows them: a photo's keypoints and points, read when it is matched.

Of a model of a thousand photos a query needs fifteen. What is held of the others is a name and a place in a
file; of the points, their positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.sfm.cameras import camera_spec
from coam.sfm.colmap_binaries import image_places, point_ids, point_positions, stored_cameras
from coam.sfm.model_folder import ModelFolder
from coam.sfm.tracks.match_graph import StoredKeypoints
from coam.types import Grid

Floats = npt.NDArray[np.float64]
NO_POINT = np.uint64(2**64 - 2)  # an id that neither a point has nor a keypoint without one (2^64 - 1)


@dataclass(frozen=True)
class KnownPhoto:
    """A photo of a model, and what lifts matches with it to 3D."""

    name: str
    number: int  # among all photos that keypoints were kept of
    turn: int  # quarters by which it was turned to be matched
    grid: Grid | None  # None for photos without a verified match
    ids: npt.NDArray[np.int64]  # (K,) grid ids of its keypoints, ascending
    positions: Floats  # (K, 2) pixels
    world: Floats  # (K, 3) their points; nan for those that have none


class KnownPhotos:
    """The photos of a model folder's largest model."""

    def __init__(self, files: ModelFolder, turns: Mapping[str, int]) -> None:
        """turns: name -> quarters by which a photo was turned to be matched, where it was."""
        model = files.require_model()
        self.turns = turns
        self._keypoints = StoredKeypoints(files.keypoints)
        self.numbered = self._keypoints.names  # all photos that keypoints were kept of
        self._number = {name: index for index, name in enumerate(self.numbered)}
        self._images = open(model / "images.bin", "rb")  # noqa: SIM115, a photo's part is read when asked for
        try:
            self._places = {image.name: image for image in image_places(model / "images.bin")}
            self._point_ids, self._positions = point_positions(model / "points3D.bin")
            cameras = stored_cameras(model / "cameras.bin")
            used = Counter(image.camera for image in self._places.values())
            self.cameras = [_spec(*cameras[number]) for number, _ in used.most_common()]
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{model}: holds no COLMAP model ({error}); make it again with coam sfm"
            ) from error
        self._ids_and_none = np.append(self._point_ids, NO_POINT)
        self.names = sorted(self._places)

    def __getitem__(self, name: str) -> KnownPhoto:
        """A photo of the model."""
        place, number = self._places[name], self._number.get(name)
        other = DataError(
            f"{self._keypoints.path}: is of another model than {self._images.name}; make both again: coam sfm"
        )
        if number is None:
            raise other
        ids, positions = self._keypoints.of(number)
        if len(ids) != place.count:
            raise other
        self._images.seek(place.begin)
        points = point_ids(self._images.read(24 * place.count))
        row = np.searchsorted(self._point_ids, points)
        has = self._ids_and_none[row] == points
        world = np.full((place.count, 3), np.nan)
        world[has] = self._positions[row[has]]
        grid, turn = self._keypoints.grids[number], self.turns.get(name, 0)
        return KnownPhoto(name, number, turn, grid, ids, positions, world)


def _spec(model: str, width: int, height: int, parameters: list[float]) -> str:
    """A stored camera as "MODEL WIDTH HEIGHT PARAMS"."""
    import pycolmap

    return camera_spec(pycolmap.Camera(model=model, width=width, height=height, params=parameters))
