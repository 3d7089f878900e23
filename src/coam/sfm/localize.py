"""Where was this photo taken? Match it against a model's photos, lift to 3D, solve for the camera, or say
why not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError, ImageError
from coam.geometry.coordinates import to_colmap
from coam.sfm.alignment import Pose
from coam.sfm.cycles import rotation_angle
from coam.sfm.intrinsics import camera_for_photo, camera_from_spec
from coam.sfm.journal import replacing
from coam.sfm.keypoints import Keypoints
from coam.sfm.locations import Location
from coam.sfm.match_pairs import looking_once, matcher_key
from coam.sfm.pairs import EXHAUSTIVE_UP_TO, nearest, unit_rows
from coam.sfm.photos import Photo, list_photo_files, read_photo
from coam.sfm.pipeline import load_model
from coam.sfm.tracks import local_affine
from coam.types import Matches

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_SHARED_CAMERAS = 3  # of a model: the camera or cameras that took its photos
OWN_CAMERA_LEAD = 1.1  # times as many inliers as with the model's camera
ENOUGH_FOR_DISTORTION = 500  # lifted matches
ESTIMATED_TRUST = 0.7  # of a pose whose focal length was estimated with it


@dataclass(frozen=True)
class LocalizeOptions:
    """How queries are located, and when a pose is refused."""

    neighbours: int = 15  # photos of the model that each query is matched against
    max_error: float = 0.005  # reprojection error of an inlier, in long sides of the query
    min_inliers: int = 15
    min_ratio: float = 0.05  # share of the lifted matches that must agree
    min_spread: float = (
        0.04  # share of the query's diagonal over which inliers must be spread (standard deviation)
    )
    max_disagreement: float = (
        10.0  # degrees, and percent of the distance to the points, between halves of the evidence
    )
    seed: int = 0


@dataclass(frozen=True)
class Lifted:
    """Matches of one query with 3D points."""

    points2d: Floats  # (N, 2) our pixels of the query
    points3d: Floats  # (N, 3)
    source: Ints  # (N,) number of the model's photo


class Localizer:
    """A model ready to locate photos in."""

    def __init__(self, model: str | Path, matcher: Any, photos: str | Path | None = None) -> None:
        """model: folder made by `coam sfm`; photos: where its photos are now, if they were moved."""
        self.folder = Path(model)
        self.model, self.keypoints = load_model(model)
        self.matcher = looking_once(matcher)
        self.root = find_photos(self.folder, photos)
        registered = {self.model.image(i).name: self.model.image(i) for i in self.model.reg_image_ids()}
        self.names = sorted(registered)
        missing = [name for name in self.names if not (self.root / name).is_file()]
        if missing:
            raise DataError(f"{self.root}: lacks {missing[0]} and {len(missing) - 1} more photos of the "
            f"model; "
                            "say where they are with --photos")  # fmt: skip
        self._number = {name: index for index, name in enumerate(self.keypoints.names)}
        self._lift = {name: _point_of_keypoint(self.model, registered[name]) for name in self.names}
        self._descriptors: npt.NDArray[np.float32] | None = None

    def retrieve(self, query: Any, count: int) -> list[str]:
        """The `count` photos of the model most similar to a query, best first (all of them in a small
        model).
        """
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
            store, key = (
                self.folder / "global_descriptors.npz",
                "\n".join([matcher_key(self.matcher), *self.names]),
            )
            if store.is_file():
                with np.load(store, allow_pickle=False) as saved:
                    if str(saved["key"]) == key:
                        self._descriptors = saved["vectors"]
                        return self._descriptors
            vectors = unit_rows(
                np.stack([np.asarray(describe(self.root / n), np.float32).ravel() for n in self.names])
            )
            with replacing(store) as temporary, open(temporary, "wb") as out:
                np.savez(out, vectors=vectors, key=np.array(key))
            self._descriptors = vectors
        return self._descriptors

    def lift(self, query: Any, names: Sequence[str]) -> Lifted:
        """Match the photos `names` against the query and give the matches whose grid position has a 3D
        point.
        """
        points2d, points3d, source = [np.zeros((0, 2))], [np.zeros((0, 3))], [np.zeros(0, np.int64)]
        results = self.matcher.match_many([(self.root / name, query) for name in names])
        for name, matches in zip(names, results, strict=True):
            found2d, found3d = lift_matches(matches, self.keypoints, self._number[name], self._lift[name])
            points2d.append(found2d)
            points3d.append(found3d)
            source.append(np.full(len(found2d), self._number[name], np.int64))
        return Lifted(np.concatenate(points2d), np.concatenate(points3d), np.concatenate(source))

    def locate(
        self, photo: Photo, camera: str | None = None, options: LocalizeOptions | None = None
    ) -> Location:
        """Locate one photo. camera: "MODEL WIDTH HEIGHT PARAMS" if known.

        Else the cameras of the model whose photos have the same size are tried, and one of the photo's own:
        from EXIF, or with an estimated focal length. Its own must explain clearly more, because a free focal
        length always explains a little more, from a wrong place.
        """
        options = options or LocalizeOptions()
        lifted = self.lift(photo.path, self.retrieve(photo.path, options.neighbours))
        best = None
        for intrinsics, source in self._cameras(photo, camera):
            found = solve_location(
                photo.name, lifted, intrinsics, source != "estimated", self.keypoints.names, options
            )
            found = replace(found, intrinsics=source)
            if best is None or found.inliers > OWN_CAMERA_LEAD * best.inliers:
                best = found
        assert best is not None
        return replace(best, confidence=trusted(best.confidence, best.intrinsics))

    def _cameras(self, photo: Photo, camera: str | None) -> list[tuple[Any, str]]:
        """The cameras to try, and where each is from."""
        if camera is not None:
            given = camera_from_spec(camera, photo.name)
            if (given.width, given.height) != photo.size:
                raise DataError(
                    f"{photo.name}: is {photo.size[0]} x {photo.size[1]} but its camera is not; "
                    "correct the list"
                )
            return [(given, "given")]
        used = Counter(self.model.image(i).camera_id for i in self.model.reg_image_ids())
        cameras = [self.model.camera(identity) for identity, _ in used.most_common()]
        same_size = [c for c in cameras if (c.width, c.height) == photo.size]
        # A collection has a camera for each photo, and none of them says much about another's.
        shared = same_size if len(cameras) <= MOST_SHARED_CAMERAS else []
        own = (camera_for_photo(photo), "estimated" if photo.focal35 is None else "EXIF")
        return [*((camera_from_spec(_spec(c), photo.name), "the model's") for c in shared), own]


def find_photos(folder: Path, photos: str | Path | None) -> Path:
    """Where the photos of a model are: as given, or as summary.json remembers."""
    if photos is not None:
        return Path(photos)
    try:
        relative = json.loads((folder / "summary.json").read_text())["photos_folder"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{folder}: summary.json does not say where the photos are; say it with --photos"
        ) from error
    return (folder / str(relative)).resolve()


def _point_of_keypoint(model: Any, image: Any) -> Floats:
    """World points (keypoints, 3) of an image's keypoints; nan where a keypoint has none."""
    points = np.full((image.num_points2D(), 3), np.nan)
    for index in image.get_observation_point2D_idxs():
        points[index] = model.point3D(image.points2D[index].point3D_id).xyz
    return points


def lift_matches(
    matches: Matches, keypoints: Keypoints, image: int, points_of_keypoints: Floats
) -> tuple[Floats, Floats]:
    """Query pixels (N, 2) and world points (N, 3) of matches whose image 0 is photo number `image` of the
    model.

    A match belongs to the grid position, the 3D point to the refined keypoint beside it; the query point is
    moved by the same step through the local affine map of the pair.
    """
    own = keypoints.of(image)
    ids = keypoints.ids[own]
    if len(ids) == 0 or len(matches) == 0:
        return np.zeros((0, 2)), np.zeros((0, 3))
    if matches.grid0 != keypoints.grids[image]:
        raise DataError(
            f"{keypoints.names[image]}: the model was made with another grid; use the same matcher settings"
        )
    index = np.minimum(np.searchsorted(ids, matches.ids0), len(ids) - 1)
    known = (ids[index] == matches.ids0) & np.isfinite(points_of_keypoints[index, 0])
    points0, points1 = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    displacement = keypoints.positions[own][index] - points0
    moved = points1 + np.einsum("mij,mj->mi", local_affine(points0, points1), displacement)
    return moved[known], points_of_keypoints[index[known]]


def solve_location(
    name: str,
    lifted: Lifted,
    camera: Any,
    focal_known: bool,
    photo_names: Sequence[str],
    options: LocalizeOptions,
) -> Location:
    """The camera pose from lifted matches, or a refusal with its reason."""
    total = len(lifted.points2d)

    def refuse(reason: str, inliers: int = 0) -> Location:
        return Location(name, None, inliers, total, 0.0, _spec(camera), (), reason)

    if total < options.min_inliers:
        return refuse(f"only {total} matches reach 3D points of the model, {options.min_inliers} needed")
    answer = _solve(lifted, camera, focal_known, options)
    if answer is None:
        return refuse("no camera pose explains the matches")
    pose, inlier = answer
    count = int(inlier.sum())
    needed = max(options.min_inliers, int(np.ceil(options.min_ratio * total)))
    if count < needed:
        return refuse(f"only {count} of {total} lifted matches agree, {needed} needed", count)
    spread = float(np.hypot(*lifted.points2d[inlier].std(axis=0)) / np.hypot(camera.width, camera.height))
    if spread < options.min_spread:
        return refuse(f"the {count} matches that agree lie in one small spot of the photo", count)
    if camera.has_bogus_params(0.1, 10.0, 1.0):
        return refuse("the estimated focal length makes no sense", count)
    disagreement = _halves_disagree(lifted, inlier, pose, camera, options)
    if disagreement:
        return refuse(disagreement, count)
    sources, votes = np.unique(lifted.source[inlier], return_counts=True)
    matched = tuple(photo_names[index] for index in sources[np.argsort(-votes, kind="stable")])
    return Location(
        name, pose, count, total, confidence(count, count / total, spread), _spec(camera), matched
    )


def confidence(inliers: int, ratio: float, spread: float) -> float:
    """In [0, 1]: each of few inliers, a small share of agreeing matches, and little spread lowers it."""
    enough: float = 1.0 - float(np.exp(-inliers / 40.0))
    return round(enough * float(np.sqrt(min(1.0, ratio / 0.3) * min(1.0, spread / 0.15))), 4)


def trusted(value: float, intrinsics: str) -> float:
    """A confidence in view of where the camera is from: focal length and distance explain each other."""
    return round(value * ESTIMATED_TRUST, 4) if intrinsics == "estimated" else value


def _solve(
    lifted: Lifted, camera: Any, focal_known: bool, options: LocalizeOptions
) -> tuple[Pose, npt.NDArray[np.bool_]] | None:
    """Pose and inlier mask (N,); an unknown focal length is written into `camera`."""
    import pycolmap

    estimation = pycolmap.AbsolutePoseEstimationOptions()
    estimation.estimate_focal_length = not focal_known
    estimation.ransac.max_error = options.max_error * max(camera.width, camera.height)
    estimation.ransac.random_seed = options.seed
    refinement = pycolmap.AbsolutePoseRefinementOptions()
    refinement.refine_focal_length = not focal_known
    refinement.refine_extra_params = not focal_known and len(lifted.points2d) >= ENOUGH_FOR_DISTORTION
    answer = pycolmap.estimate_and_refine_absolute_pose(
        to_colmap(lifted.points2d), lifted.points3d, camera, estimation, refinement
    )
    if answer is None:
        return None
    found = answer["cam_from_world"]
    pose = np.asarray(found.rotation.matrix(), np.float64), np.asarray(found.translation, np.float64)
    return pose, np.asarray(answer["inlier_mask"], np.bool_)


def _halves_disagree(
    lifted: Lifted, inlier: npt.NDArray[np.bool_], pose: Pose, camera: Any, options: LocalizeOptions
) -> str:
    """Solve again from two halves of ALL lifted matches, split by model photo; a line when they contradict
    each other.

    Look-alike places give two groups of photos that each see their own answer; the larger must not win
    silently.
    """
    sources, counts = np.unique(lifted.source, return_counts=True)
    if len(sources) < 4:
        return ""
    order = sources[np.argsort(-counts, kind="stable")]
    centre = -pose[0].T @ pose[1]
    distance = float(np.median(np.linalg.norm(lifted.points3d[inlier] - centre, axis=1)))
    for half in (order[0::2], order[1::2]):
        part = np.isin(lifted.source, half)
        if part.sum() < 2 * options.min_inliers:
            continue
        own = Lifted(lifted.points2d[part], lifted.points3d[part], lifted.source[part])
        answer = _solve(own, camera, True, options)
        if answer is None or answer[1].sum() < 2 * options.min_inliers:
            continue  # too little evidence to contradict
        other = answer[0]
        angle = rotation_angle(other[0] @ pose[0].T)
        gap = 100 * float(np.linalg.norm(-other[0].T @ other[1] - centre)) / max(distance, 1e-12)
        if angle > options.max_disagreement or gap > options.max_disagreement:
            return (
                f"two halves of the model's photos give places {angle:.0f} degrees and {gap:.0f} % "
                "of the distance apart"
            )
    return ""


def _spec(camera: Any) -> str:
    params = " ".join(f"{value:.10g}" for value in camera.params)
    return f"{camera.model_name} {camera.width} {camera.height} {params}"


def localize(
    model: str | Path,
    queries: str | Path,
    matcher: Any,
    cameras: Mapping[str, str] | None = None,
    photos: str | Path | None = None,
    options: LocalizeOptions | None = None,
) -> list[Location]:
    """Locate a photo or every photo of a folder. cameras: name (or "*") -> "MODEL WIDTH HEIGHT PARAMS".

    A query that cannot be read, or not be located, gets a `Location` with a reason; the others go on.
    """
    queries = Path(queries)
    root = queries if queries.is_dir() else queries.parent
    files = list_photo_files(queries) if queries.is_dir() else [queries]
    if not files:
        raise DataError(f"{queries}: holds no photos; give a photo or a folder of photos")
    localizer = Localizer(model, matcher, photos)
    given = cameras or {}
    locations = []
    for file in files:
        name = file.relative_to(root).as_posix()
        try:
            photo = read_photo(file, name)
            locations.append(localizer.locate(photo, given.get(name, given.get("*")), options))
        except ImageError as error:
            locations.append(Location(name, None, 0, 0, 0.0, "", (), str(error)))
    return locations
