"""Visual localization: a query is matched against a model's photos, lifted to 3D and located, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError, ImageError
from coam.geometry.local_affine import local_affine
from coam.images.folder import list_photos
from coam.sfm.cameras import camera_for_photo, camera_from_spec, camera_spec, given_camera
from coam.sfm.colmap_model import registered_images
from coam.sfm.interchange.hloc import HlocQuery, write_queries
from coam.sfm.localization.absolute_pose import Floats, Lifted, LocalizeOptions, Location, solve_location
from coam.sfm.matching.match_pairs import without_rematching
from coam.sfm.matching.orientation import turn_first_photo, upright_photo
from coam.sfm.matching.stamps import descriptor_key
from coam.sfm.model_folder import ModelFolder
from coam.sfm.pairs import EXHAUSTIVE_UP_TO, global_descriptors, nearest, unit_rows
from coam.sfm.photos import Photo, read_photo
from coam.sfm.tracks.match_graph import Keypoints
from coam.sfm.workspace import load_model
from coam.store.archives import read_plain_npz
from coam.store.atomic import atomic_write
from coam.types import Matches


class Localizer:
    """A model ready to locate photos in."""

    def __init__(self, model: str | Path, matcher: Any, photos: str | Path | None = None) -> None:
        """model: folder made by `coam sfm`; photos: where its photos are now, if they were moved."""
        self.files = ModelFolder(model)
        self.model, self.keypoints = load_model(model)
        self.matcher = without_rematching(matcher)
        self.root = find_photos(self.files, photos)
        registered = registered_images(self.model)
        self.names = sorted(registered)
        missing = [name for name in self.names if not (self.root / name).is_file()]
        if missing:
            raise DataError(
                f"{self.root}: lacks {missing[0]} and {len(missing) - 1} more photos of the model; "
                "say where they are with --photos"
            )
        turned = (self.files.read_summary() or {}).get("turned", {})
        self._turns = {name: turned.get(name, 0) for name in self.names}
        self._paths = {name: self._upright(name) for name in self.names}
        self._number = {name: index for index, name in enumerate(self.keypoints.names)}
        self._lift = {name: _point_of_keypoint(self.model, registered[name]) for name in self.names}
        self._descriptors: npt.NDArray[np.float32] | None = None

    def _upright(self, name: str) -> Path:
        """The file in which a photo of the model stands upright, as it was matched for the model."""
        path, turn = self.root / name, self._turns[name]
        return upright_photo(read_photo(path, name), turn, self.files.upright).path if turn else path

    def retrieve(self, query: Any, count: int) -> list[str]:
        """The `count` photos of the model most similar to a query, best first; all of a small model."""
        if len(self.names) <= count:
            return self.names
        describe = getattr(self.matcher, "global_descriptor", None)
        if describe is None:
            if len(self.names) > EXHAUSTIVE_UP_TO:
                raise DataError(
                    "the model is large and the matcher has no global descriptor; use another matcher"
                )
            return self.names
        base = self._global_descriptors(describe)
        # The mean of the base is not taken out: over seven sets that found no better photos (docs/sfm.md).
        vector = unit_rows(np.asarray(describe(query), np.float32).reshape(1, -1))
        return [self.names[index] for index in nearest(vector, base, count)[0]]

    def _global_descriptors(self, describe: Any) -> npt.NDArray[np.float32]:
        """Descriptors (photos, D), computed once and kept in the model folder."""
        if self._descriptors is None:
            store, key = self.files.descriptors, "\n".join([descriptor_key(self.matcher), *self.names])
            with suppress(Exception):  # missing, or damaged in any way: computed again
                saved = read_plain_npz(store)
                if str(saved["key"]) == key and len(saved["vectors"]) == len(self.names):
                    self._descriptors = saved["vectors"]
                    return self._descriptors
            vectors = global_descriptors(self._paths.values(), describe)
            with atomic_write(store) as temporary, open(temporary, "wb") as out:
                np.savez(out, vectors=vectors, key=np.array(key))
            self._descriptors = vectors
        return self._descriptors

    def lift(self, query: Any, names: Sequence[str]) -> Lifted:
        """2D-3D matches: the photos `names` are matched against the query, grid positions have 3D points."""
        nothing = np.zeros(0, np.int64)
        parts: list[tuple[Any, ...]] = [(np.zeros((0, 2)), np.zeros((0, 3)), nothing, nothing)]
        results = self.matcher.match_many([(self._paths[name], query) for name in names])
        for name, upright in zip(names, results, strict=True):
            matches = turn_first_photo(upright, -self._turns[name])
            number, known = self._number[name], self._lift[name]
            points2d, keypoint = lift_matches(matches, self.keypoints, number, known)
            source = np.full(len(keypoint), number, np.int64)
            parts.append((points2d, known[keypoint], source, keypoint))
        return Lifted(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def locate(
        self,
        photo: Photo,
        camera: str | None = None,
        options: LocalizeOptions | None = None,
        lifted: Lifted | None = None,
    ) -> Location:
        """Locate one photo. camera: "MODEL WIDTH HEIGHT PARAMS" if known. lifted: its matches, if at hand.

        Else the cameras of the model whose photos have the same size are tried, and one of the photo's own:
        from EXIF, or with an estimated focal length. Its own must explain clearly more, because a free focal
        length always explains a little more, from a wrong place.
        """
        options = options or LocalizeOptions()
        if lifted is None:
            lifted = self.lift(photo.path, self.retrieve(photo.path, options.neighbours))
        best = None
        for intrinsics, source in self._cameras(photo, camera, options.max_shared_cameras):
            found = solve_location(
                photo.name, lifted, intrinsics, source != "estimated", self.keypoints.names, options
            )
            found = replace(found, intrinsics=source)
            if best is None or found.inliers > options.own_camera_lead * best.inliers:
                best = found
        assert best is not None
        # Focal length and distance explain each other, so an estimated one is trusted less.
        trust = options.estimated_trust if best.intrinsics == "estimated" else 1.0
        return replace(best, confidence=round(best.confidence * trust, 4))

    def observed(self, lifted: Lifted) -> dict[str, npt.NDArray[np.int64]]:
        """photo of the model -> (K, 2): row of `lifted`, number of that photo's keypoint."""
        assert lifted.keypoint is not None
        rows = {int(number): np.flatnonzero(lifted.source == number) for number in np.unique(lifted.source)}
        return {
            self.keypoints.names[number]: np.stack([row, lifted.keypoint[row]], axis=1)
            for number, row in rows.items()
        }

    def _cameras(self, photo: Photo, camera: str | None, max_shared: int) -> list[tuple[Any, str]]:
        """The cameras to try, and where each is from."""
        if camera is not None:
            return [(given_camera(camera, photo), "given")]
        used = Counter(self.model.image(i).camera_id for i in self.model.reg_image_ids())
        cameras = [self.model.camera(identity) for identity, _ in used.most_common()]
        same_size = [c for c in cameras if (c.width, c.height) == photo.size]
        # A collection has a camera for each photo, and none of them says much about another's.
        shared = same_size if len(cameras) <= max_shared else []
        own = (camera_for_photo(photo), "estimated" if photo.focal35 is None else "EXIF")
        return [*((camera_from_spec(camera_spec(c), photo.name), "the model's") for c in shared), own]


def find_photos(files: ModelFolder, photos: str | Path | None) -> Path:
    """Where the photos of a model are: as given, or as summary.json remembers."""
    if photos is not None:
        return Path(photos)
    relative = (files.read_summary() or {}).get("photos_folder")
    if relative is None:
        raise DataError(f"{files.root}: summary.json does not say where the photos are; say it with --photos")
    return (files.root / str(relative)).resolve()


def _point_of_keypoint(model: Any, image: Any) -> Floats:
    """World points (keypoints, 3) of an image's keypoints; nan where a keypoint has none."""
    points = np.full((image.num_points2D(), 3), np.nan)
    for index in image.get_observation_point2D_idxs():
        points[index] = model.point3D(image.points2D[index].point3D_id).xyz
    return points


def lift_matches(
    matches: Matches, keypoints: Keypoints, image: int, points_of_keypoints: Floats
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Query pixels (N, 2) of matches with photo number `image` of the model first, and the numbers (N,) of
    that photo's keypoints that they show; only keypoints that have a world point.

    A match belongs to the grid position, the 3D point to the refined keypoint beside it; the query point is
    moved by the same step through the local affine map of the pair.
    """
    own = keypoints.of(image)
    ids = keypoints.ids[own]
    if len(ids) == 0 or len(matches) == 0:
        return np.zeros((0, 2)), np.zeros(0, np.int64)
    if matches.grid0 != keypoints.grids[image]:
        raise DataError(
            f"{keypoints.names[image]}: the model was made with another grid; use the same matcher settings"
        )
    index = np.minimum(np.searchsorted(ids, matches.ids0), len(ids) - 1)
    known = (ids[index] == matches.ids0) & np.isfinite(points_of_keypoints[index, 0])
    points0, points1 = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    displacement = keypoints.positions[own][index] - points0
    moved = points1 + np.einsum("mij,mj->mi", local_affine(points0, points1), displacement)
    return moved[known], index[known]


def localize(
    model: str | Path,
    queries: str | Path,
    matcher: Any,
    cameras: Mapping[str, str] | None = None,
    photos: str | Path | None = None,
    options: LocalizeOptions | None = None,
    hloc: str | Path | None = None,
) -> list[Location]:
    """Locate a photo or every photo of a folder. cameras: name (or "*") -> "MODEL WIDTH HEIGHT PARAMS".

    hloc: a folder for the same matches as hloc's files (`interchange.hloc.write_queries`).
    A query that cannot be read, or not be located, gets a `Location` with a reason; the others go on.
    """
    queries = Path(queries)
    root = queries if queries.is_dir() else queries.parent
    files = list_photos(queries) if queries.is_dir() else [queries]
    if not files:
        raise DataError(f"{queries}: holds no photos; give a photo or a folder of photos")
    localizer = Localizer(model, matcher, photos)
    given = cameras or {}
    neighbours = (options or LocalizeOptions()).neighbours
    locations, exported = [], []
    for file in files:
        name = file.relative_to(root).as_posix()
        try:
            photo = read_photo(file, name)
            lifted = localizer.lift(photo.path, localizer.retrieve(photo.path, neighbours))
            locations.append(localizer.locate(photo, given.get(name, given.get("*")), options, lifted))
            exported.append(
                HlocQuery(name, locations[-1].camera, lifted.points2d, localizer.observed(lifted))
            )
        except ImageError as error:
            locations.append(Location(name, None, 0, 0, 0.0, "", (), str(error)))
    if hloc is not None:
        write_queries(exported, hloc)
    return locations
