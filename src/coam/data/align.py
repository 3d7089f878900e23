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

from coam.data.photo_bank import aligned_groups
from coam.errors import DataError
from coam.geometry.homography import transfer_errors
from coam.geometry.motions import fit_motion
from coam.images import RGB, load_image
from coam.registration.rasters import of_array
from coam.registration.resampling import resample_window
from coam.registration.stack import SharedPart
from coam.registration.transforms import PlaneTransform, Transform
from coam.store.atomic import atomic_folder, atomic_write, remove_leftovers, write_json
from coam.store.documents import read_json
from coam.types import Matches, Size

REPORT = "alignment.json"
JPEG_QUALITY = 95
Match = Callable[[RGB, RGB], Matches]  # `Matcher.match`
Settings = Mapping[str, str | int]  # what else decides the result: model, resolution


@dataclass(frozen=True)
class MotionOptions:
    """When matches show a small motion of the camera, and nothing else."""

    min_inliers: int = 60  # matches that agree on a motion
    min_inlier_share: float = 0.5  # of all matches; below, most of the photo shows something else
    max_shift: float = 0.05  # of the shorter side; beyond, the camera was turned on purpose


DEFAULT_OPTIONS = MotionOptions()


@dataclass(frozen=True)
class AlignedPhoto:
    """One line of the report; lengths are in pixels of the group's first photo."""

    photo: str
    kind: str
    shift: float  # how far the centre and the corners were off, on average
    residual: float
    share: float
    kept: bool


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
    motions: dict[Path, Transform] = {photos[0]: PlaneTransform("translation", np.eye(3))}
    report = [AlignedPhoto(photos[0].name, "reference", 0.0, 0.0, 1.0, True)]
    shared = SharedPart.of((width, height))
    for path in photos[1:]:
        matches = match(first, _load_as(path, (width, height)))
        motion = fit_motion(matches.points0, matches.points1, options.min_inliers)
        if motion is None:
            report.append(AlignedPhoto(path.name, "none", 0.0, 0.0, 0.0, False))
            continue
        shift = float(transfer_errors(marks, marks, motion.matrix).mean())
        kept = motion.share >= options.min_inlier_share
        kept = kept and shift <= options.max_shift * min(width, height)
        if kept:
            onto_first = PlaneTransform(motion.kind, np.asarray(np.linalg.inv(motion.matrix), np.float64))
            narrowed = shared.narrowed(onto_first, (width, height))
            kept = narrowed.window is not None
        if kept:
            motions[path], shared = onto_first, narrowed
        report.append(AlignedPhoto(path.name, motion.kind, shift, motion.residual, motion.share, kept))
    return _moved(motions, (width, height), shared), report


def _moved(motions: Mapping[Path, Transform], size: Size, shared: SharedPart) -> Iterator[tuple[str, RGB]]:
    window = shared.window
    assert window is not None  # each photo was kept for sharing a part
    for path, transform in motions.items():
        pixels, _ = resample_window(of_array(_load_as(path, size)), transform, window)
        yield path.name, np.asarray(pixels, np.uint8)


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
