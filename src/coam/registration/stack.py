"""Stacks: a folder of images onto one of them, or onto their common middle, cut to what all of them show.

Time-lapse, exposure brackets, the bands of a camera. Every image is registered onto the reference, or where
that is refused onto a neighbour in the folder that already lies on it. Each registration is kept as a file:
a run that was stopped goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import CoamError, ConfigError, DataError
from coam.geometry.coordinates import point_grid
from coam.geometry.motions import fit_affine
from coam.images.folder import list_photos
from coam.matcher import Matcher
from coam.matcher.tiles import Window
from coam.registration.outputs import write_image
from coam.registration.pair import RegisterOptions, find_registration
from coam.registration.rasters import TIFF_ENDINGS, Georeference, Raster, open_raster
from coam.registration.resampling import DEFAULT_RESAMPLE, ResampleOptions
from coam.registration.result import Registration, RegistrationRefused
from coam.registration.transforms import Array, PlaneTransform, Reframed, Transform
from coam.store.atomic import atomic_write, write_json
from coam.store.checksums import content_digest, file_digest
from coam.types import Size

REPORT, KEPT = "registration.json", "registrations"
Progress = Callable[[int, int], None]  # done, total


@dataclass(frozen=True)
class StackOptions:
    """How a stack is registered and written."""

    register: RegisterOptions = field(default_factory=RegisterOptions)
    resample: ResampleOptions = DEFAULT_RESAMPLE
    middle: bool = False  # onto the common middle instead of onto the reference
    crop: bool = True  # to the part that all images show
    neighbours: int = 2  # images nearest in the folder through which one is tried that the reference refuses


DEFAULT_STACK = StackOptions()


@dataclass(frozen=True)
class StackedImage:
    """One line of the report; errors are in pixels of the reference."""

    photo: str
    kind: str  # of its transform; "reference"; "none"
    through: str  # the image that it was registered onto
    confidence: float
    error: float | None  # median miss of left-out matches
    kept: bool
    reason: str  # why it was left out


def register_folder(
    folder: Path,
    output: Path,
    matcher: Matcher,
    reference: Path | None = None,
    options: StackOptions = DEFAULT_STACK,
    progress: Progress = lambda done, total: None,
) -> list[StackedImage]:
    """Register the images of a folder into OUTPUT, with the report OUTPUT/registration.json.

    reference: one of them or another image; by default the first. Finished registrations are not done again.
    """
    inner, outer = Path(folder).resolve(), Path(output).resolve()
    if inner == outer or inner in outer.parents or outer in inner.parents:
        raise DataError(f"{output}: must lie neither inside {folder} nor around it; give another --output")
    photos = list_photos(folder)
    first = Path(reference) if reference is not None else (photos[0] if photos else None)
    others = [path for path in photos if first is None or path.resolve() != first.resolve()]
    if first is None or not others:
        raise DataError(f"{folder}: has too few images to register; give a folder of two or more")
    names = _names(folder, [first, *others])
    frame = open_raster(first)
    sizes = {path: open_raster(path).size for path in (first, *others)}
    shared = SharedPart.of(frame.size)
    progress(0, len(others))
    transforms: dict[Path, Transform] = {first: PlaneTransform("translation", np.eye(3))}
    report = [StackedImage(names[first], "reference", names[first], 1.0, 0.0, True, "")]
    for done, path in enumerate(others, start=1):
        found, through, reason = _onto_reference(path, first, photos, transforms, output, matcher, options)
        kept = found is not None
        if found is not None and options.crop:
            narrowed = shared.narrowed(found[0], sizes[path])
            if narrowed.window is None:
                kept, reason = False, "it shares nothing with what the others share"
            else:
                shared = narrowed
        if found is not None and kept:
            transforms[path] = found[0]
        quality = None if found is None else found[1].quality
        error = (
            None if quality is None or not math.isfinite(quality.held_out_error) else quality.held_out_error
        )
        report.append(
            StackedImage(
                photo=names[path],
                kind=found[0].kind if found is not None else "none",
                through=names.get(through, through.name),
                confidence=0.0 if quality is None else quality.confidence,
                error=error,
                kept=kept,
                reason=reason,
            )
        )
        progress(done, len(others))
    _write_stack(transforms, sizes, names, frame, output, options)
    write_json(output / REPORT, {"images": [asdict(line) for line in report]}, indent=1)
    return report


def _names(folder: Path, photos: Sequence[Path]) -> dict[Path, str]:
    """A name for each image's file in the output; refused where two would be the same."""
    names = {
        path: path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        for path in photos
    }
    stems = [str(Path(name).with_suffix("")) for name in names.values()]
    twice = [name for name in names.values() if stems.count(str(Path(name).with_suffix(""))) > 1]
    if twice:
        raise DataError(f"{folder}: {twice[0]} and {twice[1]} differ by their ending only; rename one")
    return names


def _onto_reference(
    path: Path,
    first: Path,
    photos: Sequence[Path],
    transforms: dict[Path, Transform],
    output: Path,
    matcher: Matcher,
    options: StackOptions,
) -> tuple[tuple[Transform, Registration] | None, Path, str]:
    """The transform of an image onto the reference with its registration, the image between, and why not."""
    direct, reason = _registered(path, first, output, matcher, options.register)
    if direct is not None:
        return (direct.transform, direct), first, ""
    known = {other: number for number, other in enumerate(photos)}
    place = known.get(path, 0)
    near = sorted(
        (other for other in transforms if other in known and other != first),
        key=lambda o: abs(known[o] - place),
    )
    for other in near[: options.neighbours]:
        step, _ = _registered(path, other, output, matcher, options.register)
        onto = transforms[other]
        if step is not None and isinstance(onto, PlaneTransform):
            return (Reframed(step.transform, onto.matrix), step), other, ""
    return None, first, reason


def _registered(
    moving: Path, fixed: Path, output: Path, matcher: Matcher, options: RegisterOptions
) -> tuple[Registration | None, str]:
    """The registration of two files, from its file where it was made before; None and why it is refused."""
    settings = {
        "model": matcher.file.sha256,
        "resolution": matcher.config.resolution,
        "options": repr(options),
    }
    stamp = content_digest({**settings, "moving": file_digest(moving), "fixed": file_digest(fixed)}, {})
    kept = output / KEPT / f"{moving.stem}-on-{fixed.stem}-{stamp[:12]}.json"
    if kept.is_file():
        try:
            found = Registration.load(kept)
            return (None if found.refusal else found), found.refusal
        except CoamError:
            pass  # damaged: made again
    try:
        found = find_registration(open_raster(moving), open_raster(fixed), matcher, options)
    except RegistrationRefused as refused:
        return None, str(refused)
    found = Registration.load(found.save(kept))  # the same, to the last digit, as after a stopped run
    return (None if found.refusal else found), found.refusal


# ---- the common frame


@dataclass(frozen=True, eq=False)
class SharedPart:
    """What of a frame all images show, on a lattice of at most 1000 points a side."""

    x: npt.NDArray[np.int64]  # (columns,) pixels of the frame
    y: npt.NDArray[np.int64]  # (rows,)
    seen: npt.NDArray[np.bool_]  # (rows, columns)

    @staticmethod
    def of(size: Size) -> SharedPart:
        """All of a frame of `size` (width, height)."""
        step = max(1, math.ceil(max(size) / 1000))
        x, y = (np.unique(np.append(np.arange(0, side, step), side - 1)) for side in size)
        return SharedPart(x, y, np.ones((len(y), len(x)), np.bool_))

    def narrowed(self, transform: Transform, size: Size) -> SharedPart:
        """What one more image of `size` shows of it, by its transform onto the frame."""
        grid = np.stack(np.meshgrid(self.x, self.y), axis=-1).reshape(-1, 2).astype(np.float64)
        places = transform.inverse_points(grid)
        inside = ((places >= -1e-6) & (places <= np.asarray(size) - 1 + 1e-6)).all(axis=1)
        return replace(self, seen=self.seen & inside.reshape(self.seen.shape))

    @property
    def window(self) -> Window | None:
        """A window inside it; None where there is none.

        Sides are taken away line by line, always the one with most that is missing.
        """
        top, bottom, left, right = 0, len(self.y) - 1, 0, len(self.x) - 1
        while top <= bottom and left <= right:
            sides = {
                "top": self.seen[top, left : right + 1],
                "bottom": self.seen[bottom, left : right + 1],
                "left": self.seen[top : bottom + 1, left],
                "right": self.seen[top : bottom + 1, right],
            }
            missing = {name: 1 - float(line.mean()) for name, line in sides.items()}
            worst = max(missing, key=lambda name: missing[name])
            if missing[worst] == 0:
                (x0, x1), (y0, y1) = self.x[[left, right]], self.y[[top, bottom]]
                return Window(int(x0), int(y0), int(x1 - x0) + 1, int(y1 - y0) + 1)
            top, left = top + (worst == "top"), left + (worst == "left")
            bottom, right = bottom - (worst == "bottom"), right - (worst == "right")
        return None


def middle_of(size: Size, transforms: Sequence[Transform]) -> Array:
    """The affine map (3, 3) of a frame onto the common middle of images of the same size.

    A point of the middle has the mean of the places that it has in the images.
    """
    grid = point_grid(size, 8)
    places = np.mean([transform.inverse_points(grid) for transform in transforms], axis=0)
    found = fit_affine(grid, places) if np.isfinite(places).all() else None
    if found is None:
        raise DataError("these images have no common middle; register them onto one of them")
    return found


def _write_stack(
    transforms: dict[Path, Transform],
    sizes: dict[Path, Size],
    names: dict[Path, str],
    frame: Raster,
    output: Path,
    options: StackOptions,
) -> None:
    placed = transforms
    if options.middle:
        if len({sizes[path] for path in transforms}) > 1:
            raise ConfigError("--middle needs images of one size; register them onto one of them")
        moved = middle_of(frame.size, list(transforms.values()))
        placed = {path: Reframed(transform, moved) for path, transform in transforms.items()}
    window = Window(0, 0, *frame.size)
    if options.crop:
        shared = SharedPart.of(frame.size)
        for path, transform in placed.items():
            shared = shared.narrowed(transform, sizes[path])
        if shared.window is None:
            raise DataError("these images share no part; use --keep-frame")
        window = shared.window
    to_window = np.array([[1, 0, -window.left], [0, 1, -window.top], [0, 0, 1.0]])
    georeference = None if options.middle else _cut(frame.georeference, window)
    for path, transform in placed.items():
        raster = open_raster(path)
        ending = path.suffix.lower()
        ending = ending if ending in (*TIFF_ENDINGS, ".jpg", ".jpeg") else ".png"
        target = (output / names[path]).with_suffix(ending)
        with atomic_write(target) as temporary:
            size = (window.width, window.height)
            write_image(
                temporary,
                ending,
                raster,
                Reframed(transform, to_window),
                size,
                georeference,
                options.resample,
            )


def _cut(georeference: Georeference | None, window: Window) -> Georeference | None:
    """Where a window of a georeferenced raster lies."""
    if georeference is None:
        return None
    a, b, c, d, e, f = georeference.transform
    corner = (a * window.left + b * window.top + c, d * window.left + e * window.top + f)
    return replace(georeference, transform=(a, b, corner[0], d, e, corner[1]))
