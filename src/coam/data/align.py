"""Alignment of photos of one spot: each is warped onto the first, to a part of a pixel.

A fixed camera does not stand still: wind, zoom, a new mount. The model finds where each photo's points lie in
the first photo of its group, the simplest motion that explains them is fitted, and the photo is warped by its
inverse. What cannot be trusted is left out by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from coam.data.photo_bank import aligned_groups
from coam.errors import DataError
from coam.geometry.homography import apply_homography, fit_homography
from coam.geometry.robust import estimate_homography
from coam.images import RGB, load_image
from coam.store.atomic import atomic_folder, atomic_write, remove_leftovers, write_json
from coam.store.documents import read_json
from coam.types import Matches, Size

Array = npt.NDArray[np.float64]
REPORT = "alignment.json"
JPEG_QUALITY = 95
Match = Callable[[RGB, RGB], Matches]  # `Matcher.match`
Fit = Callable[[Array, Array], Array | None]  # points (N, 2) and (N, 2) -> (3, 3)
Settings = Mapping[str, str | int]  # what else decides the result: model, resolution


@dataclass(frozen=True)
class MotionOptions:
    """When matches show a small motion of the camera, and nothing else."""

    min_inliers: int = 60  # matches that agree on a motion
    min_inlier_share: float = 0.5  # of all matches; below, most of the photo shows something else
    max_shift: float = 0.05  # of the shorter side; beyond, the camera was turned on purpose


DEFAULT_OPTIONS = MotionOptions()


@dataclass(frozen=True)
class Motion:
    """Where the pixels of a group's first photo lie in another one."""

    kind: str  # shift, similarity, affine, homography
    matrix: Array  # (3, 3)
    residual: float  # median distance in pixels of the matches that agree
    share: float  # of the matches that agree


@dataclass(frozen=True)
class AlignedPhoto:
    """One line of the report; lengths are in pixels of the group's first photo."""

    photo: str
    kind: str
    shift: float  # how far the centre and the corners were off, on average
    residual: float
    share: float
    kept: bool


def fit_motion(
    points0: npt.ArrayLike, points1: npt.ArrayLike, options: MotionOptions = DEFAULT_OPTIONS
) -> Motion | None:
    """The simplest motion 0 -> 1 that explains matches (N, 2) with outliers; None where they do not agree.

    Each kind is fitted to every other match and judged by the rest, and the other way round, so more freedom
    has to be earned.
    """
    xy0, xy1 = (np.asarray(p, np.float64).reshape(-1, 2) for p in (points0, points1))
    found = estimate_homography(xy0, xy1)
    if found is None or found.inliers.sum() < options.min_inliers:
        return None
    inner0, inner1 = xy0[found.inliers], xy1[found.inliers]
    missed = {kind: _miss_of_left_out(fit, inner0, inner1) for kind, fit in KINDS.items()}
    # A smaller difference is chance: with this margin 99 of 100 pure shifts are found to be shifts.
    bearable = (1 + 1 / np.sqrt(len(inner0))) * min(missed.values())
    kind = next(k for k, miss in missed.items() if miss <= bearable)
    matrix = KINDS[kind](inner0, inner1)
    if matrix is None:
        return None
    residual = float(np.median(_misses(matrix, inner0, inner1)))
    return Motion(kind, matrix, residual, float(found.inliers.mean()))


def _miss_of_left_out(fit: Fit, points0: Array, points1: Array) -> float:
    """By how many pixels, in the median, a fit to one half of the matches misses the other half.

    A median, because the letters of a burnt-in caption stand still and would weigh too much in a mean.
    """
    missed = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        rest = slice(1 - half.start, None, 2)
        matrix = fit(points0[half], points1[half])
        if matrix is None:
            return np.inf
        missed.append(_misses(matrix, points0[rest], points1[rest]))
    return float(np.median(np.concatenate(missed)))


def _misses(matrix: Array, points0: Array, points1: Array) -> Array:
    """Distances (N,) in pixels."""
    return np.asarray(np.linalg.norm(apply_homography(matrix, points0) - points1, axis=1))


def _fit_shift(points0: Array, points1: Array) -> Array | None:
    matrix = np.eye(3)
    matrix[:2, 2] = (points1 - points0).mean(axis=0)
    return matrix


def _fit_similarity(points0: Array, points1: Array) -> Array | None:
    """x' = a x - b y + c, y' = b x + a y + d."""
    (x, y), one, zero = points0.T, np.ones(len(points0)), np.zeros(len(points0))
    rows = np.concatenate([np.stack([x, -y, one, zero], 1), np.stack([y, x, zero, one], 1)])
    (a, b, c, d), *_ = np.linalg.lstsq(rows, points1.T.ravel(), rcond=None)
    return np.array([[a, -b, c], [b, a, d], [0, 0, 1.0]])


def _fit_affine(points0: Array, points1: Array) -> Array | None:
    rows = np.column_stack([points0, np.ones(len(points0))])
    solution, *_ = np.linalg.lstsq(rows, points1, rcond=None)
    return np.vstack([solution.T, [0, 0, 1.0]])


KINDS: dict[str, Fit] = {  # simplest first
    "shift": _fit_shift,
    "similarity": _fit_similarity,
    "affine": _fit_affine,
    "homography": fit_homography,
}


def align_group(
    photos: Sequence[Path], match: Match, options: MotionOptions = DEFAULT_OPTIONS
) -> tuple[Iterator[tuple[str, RGB]], list[AlignedPhoto]]:
    """Names and photos as the first one sees the place, cut to what all of them show, and a report of each.

    Those whose matches do not agree on a small motion are in the report only. The photos are read again when
    they are asked for, one by one: a group may be larger than the memory.
    """
    first = load_image(photos[0]).rgb
    height, width = first.shape[:2]
    frame = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)
    marks = np.vstack([frame, frame.mean(axis=0)])
    motions, box = {photos[0]: np.eye(3)}, np.array([0, 0, width - 1, height - 1])
    report = [AlignedPhoto(photos[0].name, "reference", 0.0, 0.0, 1.0, True)]
    for path in photos[1:]:
        matches = match(first, _load_as(path, (width, height)))
        motion = fit_motion(matches.points0, matches.points1, options)
        if motion is None:
            report.append(AlignedPhoto(path.name, "none", 0.0, 0.0, 0.0, False))
            continue
        shift = float(_misses(motion.matrix, marks, marks).mean())
        kept = motion.share >= options.min_inlier_share
        kept = kept and shift <= options.max_shift * min(width, height)
        if kept:
            smaller = _shared_box(box, apply_homography(np.linalg.inv(motion.matrix), frame))
            kept = bool((smaller[:2] <= smaller[2:]).all())
        if kept:
            motions[path], box = motion.matrix, smaller
        report.append(AlignedPhoto(path.name, motion.kind, shift, motion.residual, motion.share, kept))
    return _moved(motions, (width, height), box), report


def _shared_box(box: Array, corners: Array) -> Array:
    """Pixels (left, top, right, bottom) inside `box` and a quadrangle (4, 2), clockwise from its top left."""
    x, y = corners.T
    least = np.ceil([x[[0, 3]].max(), y[[0, 1]].max()])
    most = np.floor([x[[1, 2]].min(), y[[2, 3]].min()])
    return np.concatenate([np.maximum(box[:2], least), np.minimum(box[2:], most)])


def _moved(motions: Mapping[Path, Array], size: Size, box: Array) -> Iterator[tuple[str, RGB]]:
    left, top, right, bottom = box.astype(int)
    for path, matrix in motions.items():
        flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        moved = cv2.warpPerspective(_load_as(path, size), matrix, size, flags=flags)
        yield path.name, np.asarray(moved, np.uint8)[top : bottom + 1, left : right + 1]


def _load_as(path: Path, size: Size) -> RGB:
    return np.asarray(cv2.resize(load_image(path).rgb, size, interpolation=cv2.INTER_AREA), np.uint8)


def align_groups(
    folder: Path,
    output: Path,
    match: Match,
    settings: Settings,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[AlignedPhoto]]:
    """Align all groups FOLDER/GROUP/* into OUTPUT/GROUP/*.jpg.

    Returns the report of each group, which is also in OUTPUT/GROUP/alignment.json. Where fewer than two
    photos can be kept there is the report only. A group that was finished with the same photos and settings
    is not done again. Nothing but our own output is ever replaced.
    """
    groups = _named_groups(Path(folder), Path(output))
    for name, photos in groups.items():  # what will be refused is found before the work, which may take hours
        _finished(Path(output) / name, photos, settings)
    reports = {}
    for done, (name, photos) in enumerate(groups.items()):
        target = Path(output) / name
        reports[name] = _finished(target, photos, settings) or _align_into(target, photos, match, settings)
        progress(done + 1, len(groups))
    return reports


def _named_groups(folder: Path, output: Path) -> dict[str, list[Path]]:
    """Groups by their path below `folder`; refused where `output` could not hold them all safely."""
    inner, outer = folder.resolve(), output.resolve()
    if inner == outer or inner in outer.parents or outer in inner.parents:
        # The next run would take what this one has written for groups.
        raise DataError(f"{output}: must lie neither inside {folder} nor around it; give another --output")
    groups = {group[0].parent.relative_to(folder): group for group in aligned_groups(folder)}
    for place, photos in groups.items():
        if place == Path():
            raise DataError(f"{folder}: has photos itself; put those of each spot into a sub-folder of it")
        if any(parent in groups for parent in place.parents):
            raise DataError(f"{folder / place}: lies inside another group; put it beside that one")
        if len({path.stem for path in photos}) < len(photos):
            raise DataError(f"{folder / place}: two photos differ by their ending only; rename one")
    return {str(place): photos for place, photos in groups.items()}


def _finished(target: Path, photos: Sequence[Path], settings: Settings) -> list[AlignedPhoto]:
    """The report of a group that needs no work, or an empty one. What is not ours is refused."""
    remove_leftovers(target.parent)
    try:
        files = set(os.listdir(target)) if target.exists() else set()
    except OSError as error:
        raise DataError(f"{target}: cannot be read ({error.strerror or error}); check the folder") from error
    if not files:
        return []
    foreign = f"{target}: has files that coam data align did not write; move them or give another --output"
    if REPORT not in files:
        raise DataError(foreign)
    try:
        content = read_json(target / REPORT, (dict, list))
        if isinstance(content, list):  # of a version that did not keep the settings
            content = {"settings": None, "photos": content}
        report = [AlignedPhoto(**line) for line in content["photos"]]
    except (DataError, TypeError, KeyError) as error:
        raise DataError(f"{target / REPORT}: damaged; remove {target} and run again") from error
    same_photos = [line.photo for line in report] == [path.name for path in photos]
    if same_photos and content.get("settings") == settings:
        return report
    if files - {REPORT, *(f"{Path(line.photo).stem}.jpg" for line in report)}:
        raise DataError(foreign)
    return []


def _align_into(target: Path, photos: Sequence[Path], match: Match, settings: Settings) -> list[AlignedPhoto]:
    with atomic_folder(target) as folder:
        aligned, report = align_group(photos, match)
        if sum(line.kept for line in report) > 1:
            for name, rgb in aligned:
                _write_jpeg(folder / f"{Path(name).stem}.jpg", rgb)
        content = {"settings": dict(settings), "photos": [asdict(line) for line in report]}
        write_json(folder / REPORT, content, indent=1)
    return report


def _write_jpeg(path: Path, rgb: RGB) -> None:
    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    _, encoded = cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), options)
    with atomic_write(path) as temporary:  # cv2.imwrite would not say why it failed
        temporary.write_bytes(encoded.tobytes())
