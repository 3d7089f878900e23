"""Visual localization: a query is matched against a model's photos, lifted to 3D and located, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError, ImageError
from coam.geometry.local_affine import local_affine
from coam.images.folder import list_photos
from coam.progress import progress
from coam.sfm.cameras import camera_for_photo, camera_from_spec, given_camera
from coam.sfm.colmap_model import read_model
from coam.sfm.descriptors import Descriptors, describe_all, global_descriptors, load_described, unit_rows
from coam.sfm.interchange.hloc import HlocQuery, write_queries
from coam.sfm.localization.absolute_pose import Floats, Lifted, LocalizeOptions, Location, solve_location
from coam.sfm.localization.known_photos import KnownPhoto, KnownPhotos
from coam.sfm.matching.match_pairs import LoadMatcher, without_rematching
from coam.sfm.matching.orientation import turn_first_photo, upright_photo
from coam.sfm.matching.stamps import descriptor_key
from coam.sfm.model_folder import ModelFolder
from coam.sfm.pairs import EXHAUSTIVE_UP_TO, nearest
from coam.sfm.photos import Photo, read_photo
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.types import Matches


class Localizer:
    """A model ready to locate photos in. Of its photos only what is needed is read, when it is needed."""

    def __init__(
        self,
        model: str | Path,
        matcher: Any,
        photos: str | Path | None = None,
        workers: Workers = HERE,
        load: LoadMatcher | None = None,
    ) -> None:
        """model: folder made by `coam sfm`; photos: where its photos are now, if they were moved.

        workers: describe the model's photos, where `load` makes the same matcher in one (picklable).
        """
        self.files = ModelFolder(model)
        self.matcher = without_rematching(matcher)
        turned = (self.files.read_summary() or {}).get("turned", {})
        self.known = KnownPhotos(self.files, turned)
        self.root = find_photos(self.files, photos)
        self.names = self.known.names
        missing = [name for name in self.names if not (self.root / name).is_file()]
        if missing:
            raise DataError(
                f"{self.root}: lacks {missing[0]} and {len(missing) - 1} more photos of the model; "
                "say where they are with --photos"
            )
        self._workers, self._load = workers, load
        self._descriptors: Descriptors | None = None

    @cached_property
    def model(self) -> Any:
        """All of the pycolmap model; locating does not need it."""
        return read_model(self.files.model)

    def path(self, name: str) -> Path:
        """The file in which a photo of the model stands upright, as it was matched for the model."""
        path, turn = self.root / name, self.known.turns.get(name, 0)
        return upright_photo(read_photo(path, name), turn, self.files.upright).path if turn else path

    def retrieve(self, query: Any, count: int) -> list[str]:
        """The `count` photos of the model most similar to a query, best first; all of a small model."""
        vector = None
        if self.describes(count):
            vector = unit_rows(np.asarray(self.matcher.global_descriptor(query), np.float32).reshape(1, -1))
        return self.most_similar(vector, count)

    def describes(self, count: int) -> bool:
        """Whether the `count` most similar photos are found by global descriptors; else all are taken."""
        if len(self.names) <= count:
            return False
        able = hasattr(self.matcher, "global_descriptor")
        if not able and len(self.names) > EXHAUSTIVE_UP_TO:
            raise DataError(
                "the model is large and the matcher has no global descriptor; use another matcher"
            )
        return able

    def most_similar(self, vector: Descriptors | None, count: int) -> list[str]:
        """The `count` photos of the model most similar to a descriptor (1, D), best first; None: all."""
        if vector is None:
            return self.names
        # The mean of the base is not taken out: over seven sets that found no better photos (docs/sfm.md).
        return [self.names[index] for index in nearest(vector, self._global_descriptors(), count)[0]]

    def _global_descriptors(self) -> Descriptors:
        """Descriptors (photos, D), computed once and kept in the model folder."""
        if self._descriptors is None:
            key = descriptor_key(self.matcher)
            found = load_described(self.files.descriptors, self.names, key)
            if found is None:
                paths = {name: self.path(name) for name in self.names}
                found = describe_all(paths, self.matcher, key, self._workers, self._load)
                found.save(self.files.descriptors)
            self._descriptors = found.of(self.names)
        return self._descriptors

    def lift(self, query: Any, names: Sequence[str]) -> Lifted:
        """2D-3D matches: the photos `names` are matched against the query, grid positions have 3D points."""
        return lift_query(
            self.matcher, query, [self.known[name] for name in names], [self.path(name) for name in names]
        )

    def locate(
        self,
        photo: Photo,
        camera: str | None = None,
        options: LocalizeOptions | None = None,
        lifted: Lifted | None = None,
    ) -> Location:
        """Locate one photo. camera: "MODEL WIDTH HEIGHT PARAMS" if known. lifted: its matches, if at hand.

        Else the cameras of the model whose photos have the same size are tried, and one of the photo's own:
        from EXIF, or with an estimated focal length.
        """
        options = options or LocalizeOptions()
        if lifted is None:
            lifted = self.lift(photo.path, self.retrieve(photo.path, options.neighbours))
        cameras = self.cameras_for(photo, camera, options.max_shared_cameras)
        return best_location(photo.name, lifted, cameras, self.known.numbered, options)

    def observed(self, lifted: Lifted) -> dict[str, npt.NDArray[np.int64]]:
        """photo of the model -> (K, 2): row of `lifted`, number of that photo's keypoint."""
        assert lifted.keypoint is not None
        rows = {int(number): np.flatnonzero(lifted.source == number) for number in np.unique(lifted.source)}
        return {
            self.known.numbered[number]: np.stack([row, lifted.keypoint[row]], axis=1)
            for number, row in rows.items()
        }

    def cameras_for(self, photo: Photo, camera: str | None, max_shared: int) -> list[tuple[Any, str]]:
        """The cameras to try for a query, and where each is from."""
        if camera is not None:
            return [(given_camera(camera, photo), "given")]
        # A collection has a camera for each photo, and none of them says much about another's.
        specs = self.known.cameras if len(self.known.cameras) <= max_shared else []
        cameras = [(camera_from_spec(spec, photo.name), "the model's") for spec in specs]
        shared = [(c, source) for c, source in cameras if (c.width, c.height) == photo.size]
        return [*shared, (camera_for_photo(photo), "estimated" if photo.focal35 is None else "EXIF")]


def find_photos(files: ModelFolder, photos: str | Path | None) -> Path:
    """Where the photos of a model are: as given, or as summary.json remembers."""
    if photos is not None:
        return Path(photos)
    relative = (files.read_summary() or {}).get("photos_folder")
    if relative is None:
        raise DataError(f"{files.root}: summary.json does not say where the photos are; say it with --photos")
    return (files.root / str(relative)).resolve()


def lift_query(matcher: Any, query: Path, known: Sequence[KnownPhoto], paths: Sequence[Path]) -> Lifted:
    """2D-3D matches of a query with photos of a model, whose upright files are `paths`."""
    nothing = np.zeros(0, np.int64)
    parts: list[tuple[Any, ...]] = [(np.zeros((0, 2)), np.zeros((0, 3)), nothing, nothing)]
    results = matcher.match_many([(path, query) for path in paths])
    for photo, upright in zip(known, results, strict=True):
        points2d, keypoint = lift_matches(turn_first_photo(upright, -photo.turn), photo)
        source = np.full(len(keypoint), photo.number, np.int64)
        parts.append((points2d, photo.world[keypoint], source, keypoint))
    return Lifted(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def lift_matches(matches: Matches, photo: KnownPhoto) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Query pixels (N, 2) of matches with a photo of the model first, and the numbers (N,) of that photo's
    keypoints that they show; only keypoints that have a world point.

    A match belongs to the grid position, the 3D point to the refined keypoint beside it; the query point is
    moved by the same step through the local affine map of the pair.
    """
    ids = photo.ids
    if len(ids) == 0 or len(matches) == 0:
        return np.zeros((0, 2)), np.zeros(0, np.int64)
    if matches.grid0 != photo.grid:
        raise DataError(f"{photo.name}: the model was made with another grid; use the same matcher settings")
    index = np.minimum(np.searchsorted(ids, matches.ids0), len(ids) - 1)
    known = (ids[index] == matches.ids0) & np.isfinite(photo.world[index, 0])
    points0, points1 = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    displacement = photo.positions[index] - points0
    moved = points1 + np.einsum("mij,mj->mi", local_affine(points0, points1), displacement)
    return moved[known], index[known]


def best_location(
    name: str,
    lifted: Lifted,
    cameras: Sequence[tuple[Any, str]],
    photo_names: Sequence[str],
    options: LocalizeOptions,
) -> Location:
    """Where a query was taken, by the camera that explains its matches. cameras: each with where it is from,
    the query's own last.

    Its own must explain clearly more, because a free focal length always explains a little more, from a wrong
    place.
    """
    best = None
    for intrinsics, source in cameras:
        found = solve_location(name, lifted, intrinsics, source != "estimated", photo_names, options)
        found = replace(found, intrinsics=source)
        if best is None or found.inliers > options.own_camera_lead * best.inliers:
            best = found
    assert best is not None
    # Focal length and distance explain each other, so an estimated one is trusted less.
    trust = options.estimated_trust if best.intrinsics == "estimated" else 1.0
    return replace(best, confidence=round(best.confidence * trust, 4))


def localize(
    model: str | Path,
    queries: str | Path,
    matcher: Any,
    cameras: Mapping[str, str] | None = None,
    photos: str | Path | None = None,
    options: LocalizeOptions | None = None,
    hloc: str | Path | None = None,
    workers: Workers = HERE,
    load: LoadMatcher | None = None,
    show_progress: bool = False,
) -> list[Location]:
    """Locate a photo or every photo of a folder. cameras: name (or "*") -> "MODEL WIDTH HEIGHT PARAMS".

    hloc: a folder for the same matches as hloc's files (`interchange.hloc.write_queries`). workers: where
    queries are described, matched and located, if `load` makes the same matcher in one (picklable); they are
    sent what they need of the model, a query at a time.
    A query that cannot be read, or not be located, gets a `Location` with a reason; the others go on.
    """
    queries, options, given = Path(queries), options or LocalizeOptions(), cameras or {}
    root = queries if queries.is_dir() else queries.parent
    files = list_photos(queries) if queries.is_dir() else [queries]
    if not files:
        raise DataError(f"{queries}: holds no photos; give a photo or a folder of photos")
    if load is None or workers is HERE:
        workers, load = HERE, lambda: matcher
    localizer = Localizer(model, matcher, photos, workers, load)
    locations: dict[str, Location | None] = {}  # None: still to be located
    read: dict[str, Photo] = {}
    for file in files:
        name = file.relative_to(root).as_posix()
        locations[name] = None
        try:
            read[name] = read_photo(file, name)
        except ImageError as error:
            locations[name] = _unreadable(name, error)
    vectors: dict[str, Any] = {}
    if localizer.describes(options.neighbours):
        paths = {name: photo.path for name, photo in read.items()}
        vectors = global_descriptors(paths, localizer.matcher, workers, load)
    for name, vector in vectors.items():
        if isinstance(vector, ImageError):
            locations[name] = _unreadable(name, vector)

    todo = [name for name, location in locations.items() if location is None]
    described = {name: vectors[name][None] if name in vectors else None for name in todo}
    similar = {name: localizer.most_similar(described[name], options.neighbours) for name in todo}
    chosen = set().union(*similar.values())
    on_disk = {f"query/{name}": read[name].path for name in todo}
    on_disk |= {f"model/{name}": localizer.path(name) for name in sorted(chosen)}

    def job(name: str) -> _Job:
        photo = read[name]
        tried = localizer.cameras_for(photo, given.get(name, given.get("*")), options.max_shared_cameras)
        return name, [localizer.known[other] for other in similar[name]], tried

    task = Task(
        partial(_locating, load, localizer.known.numbered, options, hloc is not None),
        todo,
        1,
        job,
        on_disk,
        reads=lambda name: [f"query/{name}", *(f"model/{other}" for other in similar[name])],
        network=True,
    )
    exported = {}
    with progress("locating", len(files), len(files) - len(todo), show_progress, "photos") as bar:
        for location, lifted in workers.run(task):
            locations[location.name] = location
            if lifted is not None:
                observed = localizer.observed(lifted)
                exported[location.name] = HlocQuery(location.name, location.camera, lifted.points2d, observed)
            bar.advance()
    if hloc is not None:
        write_queries([exported[name] for name in locations if name in exported], hloc)
    return [location for location in locations.values() if location is not None]


_Job = tuple[str, list[KnownPhoto], list[tuple[Any, str]]]  # a query, photos to match it with, its cameras


def _locating(load: LoadMatcher, photo_names: Sequence[str], options: LocalizeOptions, keep: bool) -> Work:
    """What a worker does with queries. keep: their 2D-3D matches are wanted too."""
    matcher = without_rematching(load())

    def locate(jobs: Iterable[_Job], paths: Mapping[str, Path]) -> Iterator[tuple[Location, Lifted | None]]:
        for name, known, cameras in jobs:
            try:
                upright = [paths[f"model/{photo.name}"] for photo in known]
                lifted = lift_query(matcher, paths[f"query/{name}"], known, upright)
            except ImageError as error:
                yield _unreadable(name, error), None
                continue
            yield best_location(name, lifted, cameras, photo_names, options), lifted if keep else None

    return locate


def _unreadable(name: str, error: ImageError) -> Location:
    return Location(name, None, 0, 0, 0.0, "", (), str(error))
