"""Photos of one spot moved onto each other, to a part of a pixel.

A fixed camera does not stand still: wind, zoom, a new mount. The model finds where each photo's points lie in
the first photo of its group, the simplest motion that explains them is fitted, and the photo is warped by its
inverse. What cannot be trusted is left out by name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from coam.data.bank import aligned_groups
from coam.errors import CoamError, DataError
from coam.geometry.homography import apply_homography, fit_homography
from coam.geometry.robust import estimate_homography
from coam.images import RGB, load_image
from coam.storage import atomic_write
from coam.types import Matches

Array = npt.NDArray[np.float64]
REPORT = "alignment.json"
FEWEST = 60  # matches that agree on a motion
LEAST_SHARE = 0.5  # of all matches must agree: else most of the photo shows something else
LARGEST_SHIFT = 0.05  # of the width: beyond, the camera was turned on purpose
SIMPLER_IF_WITHIN = 1.02  # a simpler motion may miss the left-out matches by this factor more
JPEG_QUALITY = 95
Match = Callable[[RGB, RGB], Matches]  # `Matcher.match`


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


def fit_motion(points0: npt.ArrayLike, points1: npt.ArrayLike) -> Motion | None:
    """The simplest motion 0 -> 1 that explains matches (N, 2) with outliers; None where they do not agree.

    Each kind is fitted to every other match and judged by the rest, so more freedom has to be earned.
    """
    xy0, xy1 = (np.asarray(p, np.float64).reshape(-1, 2) for p in (points0, points1))
    found = estimate_homography(xy0, xy1)
    if found is None or found.inliers.sum() < FEWEST:
        return None
    inner0, inner1 = xy0[found.inliers], xy1[found.inliers]
    missed = {}
    for kind, fit in KINDS.items():
        matrix = fit(inner0[::2], inner1[::2])
        if matrix is not None:
            missed[kind] = _median_miss(matrix, inner0[1::2], inner1[1::2])
    kind = next(k for k, miss in missed.items() if miss <= SIMPLER_IF_WITHIN * min(missed.values()))
    matrix = KINDS[kind](inner0, inner1)
    if matrix is None:
        return None
    return Motion(kind, matrix, _median_miss(matrix, inner0, inner1), float(found.inliers.mean()))


def _median_miss(matrix: Array, points0: Array, points1: Array) -> float:
    return float(np.median(np.linalg.norm(apply_homography(matrix, points0) - points1, axis=1)))


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


KINDS: dict[str, Callable[[Array, Array], Array | None]] = {  # simplest first
    "shift": _fit_shift,
    "similarity": _fit_similarity,
    "affine": _fit_affine,
    "homography": fit_homography,
}


def align_group(photos: Sequence[Path], match: Match) -> tuple[dict[str, RGB], list[AlignedPhoto]]:
    """Photos by name as the first one sees the place, cut to what all of them show, and a report of each.

    Those whose matches do not agree on a small motion are in the report only.
    """
    first = load_image(photos[0]).rgb
    height, width = first.shape[:2]
    frame = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)
    aligned = {photos[0].name: first}
    report = [AlignedPhoto(photos[0].name, "reference", 0.0, 0.0, 1.0, True)]
    seen = [frame]
    for path in photos[1:]:
        other = cv2.resize(load_image(path).rgb, (width, height), interpolation=cv2.INTER_AREA)
        matches = match(first, np.asarray(other, np.uint8))
        motion = fit_motion(matches.points0, matches.points1)
        if motion is None:
            report.append(AlignedPhoto(path.name, "none", 0.0, 0.0, 0.0, False))
            continue
        marks = np.vstack([frame, frame.mean(axis=0)])
        shift = float(np.linalg.norm(apply_homography(motion.matrix, marks) - marks, axis=1).mean())
        kept = motion.share >= LEAST_SHARE and shift <= LARGEST_SHIFT * width
        report.append(AlignedPhoto(path.name, motion.kind, shift, motion.residual, motion.share, kept))
        if kept:
            back = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
            moved = cv2.warpPerspective(other, motion.matrix, (width, height), flags=back)
            aligned[path.name] = np.asarray(moved, np.uint8)
            seen.append(apply_homography(np.linalg.inv(motion.matrix), frame))
    rows, columns = _common_part(seen)
    return {name: rgb[rows, columns] for name, rgb in aligned.items()}, report


def _common_part(corners: Sequence[Array]) -> tuple[slice, slice]:
    """Rows and columns inside all quadrangles (4, 2): top left, top right, bottom right, bottom left."""
    c = np.stack(corners)
    left, top = np.ceil(c[:, [0, 3], 0].max()), np.ceil(c[:, [0, 1], 1].max())
    right, bottom = np.floor(c[:, [1, 2], 0].min()), np.floor(c[:, [2, 3], 1].min())
    return slice(int(top), int(bottom) + 1), slice(int(left), int(right) + 1)


def align_groups(
    folder: Path,
    output: Path,
    match: Match,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[AlignedPhoto]]:
    """Align all groups FOLDER/GROUP/* into OUTPUT/GROUP/*.jpg; a finished group is not done again.

    Returns the report of each group, which is also in OUTPUT/GROUP/alignment.json. Where fewer than two
    photos can be kept there is the report only.
    """
    if Path(output).resolve() == Path(folder).resolve():
        raise DataError(f"{output}: is the folder of the groups itself; give another one with --output")
    groups = aligned_groups(folder)
    reports: dict[str, list[AlignedPhoto]] = {}
    for done, photos in enumerate(groups):
        name = str(photos[0].parent.relative_to(folder))
        reports[name] = _align_once(photos, Path(output) / name, match)
        progress(done + 1, len(groups))
    return reports


def _align_once(photos: Sequence[Path], target: Path, match: Match) -> list[AlignedPhoto]:
    """The report is written last: a group without one is begun anew."""
    finished = target / REPORT
    if len({path.stem for path in photos}) < len(photos):
        raise DataError(f"{photos[0].parent}: two photos differ by their ending only; rename one")
    if finished.is_file():
        try:
            return [AlignedPhoto(**line) for line in json.loads(finished.read_text())]
        except (ValueError, TypeError) as error:
            raise DataError(f"{finished}: damaged; remove {target} and run again") from error
    try:
        aligned, report = align_group(photos, match)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if len(aligned) > 1:
            for name, rgb in aligned.items():
                _write_jpeg(target / f"{Path(name).stem}.jpg", rgb)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({os.strerror(error.errno or 0)})") from error
    with atomic_write(finished) as temporary:
        temporary.write_text(json.dumps([asdict(line) for line in report], indent=1))
    return report


def _write_jpeg(path: Path, rgb: RGB) -> None:
    if not cv2.imwrite(
        str(path), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    ):
        raise CoamError(f"{path}: cannot be written")
