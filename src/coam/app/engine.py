"""The work behind the web app, free of any web framework: photos in, pictures and words out."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from coam.app.uploads import read_upload
from coam.caches import LRUCache
from coam.errors import CoamError, ConfigError, DataError, ImageError
from coam.store.atomic import write_text
from coam.types import Matches, Size

if TYPE_CHECKING:
    from coam.evaluation.matchers.by_name import MatcherSpec
    from coam.geometry.two_view_models import TwoViewModel
    from coam.images import LoadedImage
    from coam.matcher import Matcher, PreparedImage
    from coam.matcher.explain import Explanation
    from coam.matching.settings import Looks, MatcherConfig
    from coam.registration import Registration
    from coam.stylization import Stylized
    from coam.stylization.network import StylizerFile
    from coam.types import PairMatcher
    from coam.warp import Warp

MatcherLoader = Callable[[str, str], "Matcher"]  # of a model's name and a device's
LOOKS: dict[str, Looks] = {
    "one look": "once",
    "aligned look": "align",
    "search zooms and turns": "search",
}
PICTURES = {  # what a visitor reads -> a style of `draw_matches`, or the checkerboard
    "lines": "side",
    "same colour = same place": "flow",
    "overlay": "overlay",
    "checkerboard": "checkerboard",
}


@dataclass(frozen=True)
class Limits:
    """Bounds that keep one visitor from using up the machine."""

    upload_bytes: int = 40 * 1024 * 1024  # of one file
    photo_pixels: int = 50_000_000  # of one photo; checked before it is decoded
    resolutions: tuple[int, ...] = (320, 512, 640, 800, 1024)  # pixels of the long side
    max_matches: int = 8192
    max_photos: int = 40  # of one reconstruction
    preview_side: int = 1600  # pixels of the long side of what the page shows of a photo
    compared_side: int = 1600  # pixels to which photos are shrunk for a comparison of matchers
    waiting_jobs: int = 16  # one more is turned away
    cached_photos: int = 8  # encoded photos in memory
    cached_matchers: int = 4  # networks made ready with other settings
    cached_results: int = 4  # of each kind: matched pairs, warps, stylized pictures
    file_seconds: int = 3600  # age at which uploads and results are deleted
    job_seconds: float = 600.0  # of one match or stylized picture; it ends at its next step
    reconstruction_seconds: float = 3600.0  # its process is ended at once


DEFAULT_LIMITS = Limits()
PHOTO_LABELS = ("photo 1", "photo 2")  # what visitors call the photos of the pair
_MOST_ORIGINALS = 4096  # previews that are remembered


def default_loader(model: str, device: str) -> Matcher:
    """The matcher of that name on that device ("auto": the best at hand)."""
    from coam.matcher import load_matcher

    return load_matcher(model, device=device)


def model_names() -> list[str]:
    """The models whose trained weights are in this installation; all of them when there are none."""
    from coam.models.registry import MODELS, packaged_weights

    trained = [name for name in MODELS if packaged_weights(name) is not None]
    return trained or list(MODELS)


def has_stylizer() -> bool:
    """Whether the trained weights of the stylizer are in this installation."""
    from coam.models.registry import packaged_weights
    from coam.stylization.network import DEFAULT_STYLIZER

    return packaged_weights(DEFAULT_STYLIZER) is not None


@dataclass(frozen=True)
class Upload:
    """One photo as it came: its bytes are read once, its digest names it in the caches."""

    image: LoadedImage
    digest: str
    path: str  # where it lies in the upload folder
    shown: Size  # (width, height) in pixels as the page shows it


@dataclass(frozen=True)
class MatchedPair:
    """The matches of two photos, the plane and the epipolar geometry they show, and what took how long."""

    matches: Matches
    models: tuple[TwoViewModel, ...]  # homography, fundamental matrix: those that there are
    seconds: dict[str, float]  # part of the work -> seconds


class Engine:
    """Matchers and encoded photos in LRU caches between requests; safe to use from several threads.

    One lock serialises the network: two jobs at once would only share the same cores and double the memory.
    """

    def __init__(
        self,
        loader: MatcherLoader = default_loader,
        limits: Limits = DEFAULT_LIMITS,
        device: str = "auto",
        uploads: Path | None = None,
    ) -> None:
        """uploads: the folder whose files `read` may read; None: nothing can be read."""
        self.limits = limits
        self.uploads = uploads
        self.device = device
        self._loader = loader
        self._models: dict[str, Matcher] = {}
        self._matchers: LRUCache[tuple[str, MatcherConfig], Matcher] = LRUCache(limits.cached_matchers)
        self._photos: LRUCache[str, LoadedImage] = LRUCache(limits.cached_photos)
        self._prepared: LRUCache[tuple[str, str, int], PreparedImage] = LRUCache(limits.cached_photos)
        self._stylized: LRUCache[tuple[str, str, str, int], Stylized] = LRUCache(limits.cached_results)
        self._pairs: LRUCache[tuple[Any, ...], MatchedPair] = LRUCache(limits.cached_results)
        self._warps: LRUCache[tuple[str, str, str, int], Warp] = LRUCache(limits.cached_results)
        self._registrations: LRUCache[tuple[Any, ...], Registration] = LRUCache(limits.cached_results)
        self._others: LRUCache[str, tuple[MatcherSpec, PairMatcher]] = LRUCache(limits.cached_matchers)
        # Digest of a preview -> path of the upload it was made of, and the preview's size
        self._originals: dict[str, tuple[str, Size]] = {}
        self._stylizer: StylizerFile | None = None
        self._lock = threading.Lock()

    def read(self, path: str | os.PathLike[str] | None, label: str) -> Upload:
        """The uploaded photo at `path`, within the limits; errors name it by `label`, never by its path.

        A preview that `preview` made stands for the photo it was made of.
        """
        from coam.images import load_image

        if path is None:
            raise ConfigError(f"{label} is missing: upload it or choose an example")
        content = read_upload(path, self.uploads, self.limits.upload_bytes, label)
        digest = hashlib.sha256(content).hexdigest()
        place, shown = os.fspath(path), None
        if digest in self._originals:
            place, shown = self._originals[digest]
            content = read_upload(place, self.uploads, self.limits.upload_bytes, label)
            digest = hashlib.sha256(content).hexdigest()
        try:
            most = self.limits.photo_pixels
            with self._lock:
                image = self._photos.get(digest, lambda: load_image(content, max_pixels=most))
        except CoamError as error:
            words = str(error).removeprefix("the given bytes: ").replace("the given bytes", "this file")
            raise ImageError(f"{label}{' ' if words.startswith('is ') else ': '}{words}") from error
        return Upload(image, digest, place, shown or image.size)

    def read_pair(self, *paths: str | os.PathLike[str] | None) -> list[Upload]:
        """Both photos of the pair, as `read` gives them."""
        return [self.read(path, label) for path, label in zip(paths, PHOTO_LABELS, strict=True)]

    def preview(self, path: str | os.PathLike[str] | None, label: str, folder: Path) -> str:
        """A file in `folder` that browsers show as the upload at `path` is meant: upright, 8 bit, not large.

        `read` of it gives the upload itself.
        """
        photo = self.read(path, label)
        picture = Image.fromarray(photo.image.rgb)
        picture.thumbnail((self.limits.preview_side, self.limits.preview_side), Image.Resampling.LANCZOS)
        shown = folder / "preview.jpg"
        # The comment makes previews of different files differ, whatever they show.
        picture.save(shown, quality=90, comment=photo.digest.encode())
        made = hashlib.sha256(shown.read_bytes()).hexdigest()
        self._originals[made] = (photo.path, picture.size)
        while len(self._originals) > _MOST_ORIGINALS:
            del self._originals[next(iter(self._originals))]
        return str(shown)

    def matcher(self, model: str, resolution: int, max_matches: int = 1, looks: str = "one look") -> Matcher:
        """The matcher with these settings, `looks` one of `LOOKS`; networks stay loaded."""
        from coam.matcher import Matcher

        if model not in model_names():
            raise ConfigError(f"there is no model {model!r}; choose one of {', '.join(model_names())}")
        if resolution not in self.limits.resolutions:
            raise ConfigError(f"resolution must be one of {', '.join(map(str, self.limits.resolutions))}")
        if not 1 <= max_matches <= self.limits.max_matches:
            raise ConfigError(f"the number of matches must be between 1 and {self.limits.max_matches}")
        if looks not in LOOKS:
            raise ConfigError(f"there is no way to look {looks!r}; choose one of {', '.join(LOOKS)}")
        with self._lock:
            if model not in self._models:
                self._models[model] = self._loader(model, self.device)
            base = self._models[model]
            config = replace(base.config, resolution=resolution, max_matches=max_matches, looks=LOOKS[looks])
            return self._matchers.get((model, config), lambda: Matcher(base.file, config, base.device))

    def other_matcher(self, name: str) -> tuple[MatcherSpec, PairMatcher]:
        """A matcher that is not ours, by its name in `coam.evaluation`; the last ones stay loaded."""
        from coam.evaluation.matchers.by_name import find_matcher

        def load() -> tuple[MatcherSpec, PairMatcher]:
            spec = find_matcher(name, device=self.device)
            return spec, spec.create()

        with self._lock:
            return self._others.get(name, load)

    def prepare(self, matcher: Matcher, photo: Upload) -> PreparedImage:
        """The encoded photo; a photo seen lately with the same model and resolution is not encoded again."""
        key = (matcher.file.name, photo.digest, matcher.config.resolution)
        with self._lock:
            return self._prepared.get(key, lambda: matcher.prepare(photo.image))

    def match(self, matcher: Matcher, photo0: PreparedImage, photo1: PreparedImage) -> Matches:
        """Matches of two encoded photos."""
        with self._lock:
            return matcher.match(photo0, photo1)

    def match_pair(self, matcher: Matcher, photos: Sequence[Upload]) -> Generator[str, None, MatchedPair]:
        """Match two photos, saying what is done; the same pair and settings are not matched again."""
        if self.is_matched(matcher, photos):
            return self._kept(matcher, photos)
        clock = time.perf_counter
        began, prepared = clock(), []
        for number, photo in enumerate(photos, start=1):
            yield f"looking at photo {number} …"
            prepared.append(self.prepare(matcher, photo))
        seen = clock()
        yield "matching …"
        matches = self.match(matcher, prepared[0], prepared[1])
        matched = clock()
        yield "judging the matches …"
        models = two_view_models(matches)
        seconds = {"looking": seen - began, "matching": matched - seen, "geometry": clock() - matched}
        return self._kept(matcher, photos, MatchedPair(matches, models, seconds))

    def is_matched(self, matcher: Matcher, photos: Sequence[Upload]) -> bool:
        """Whether `match_pair` has its answer at hand."""
        return _pair_key(matcher, photos) in self._pairs

    def _kept(
        self, matcher: Matcher, photos: Sequence[Upload], found: MatchedPair | None = None
    ) -> MatchedPair:
        def new() -> MatchedPair:
            if found is None:
                raise DataError("the matches of this pair are no longer there; match it again")
            return found

        with self._lock:
            return self._pairs.get(_pair_key(matcher, photos), new)

    def warp(self, matcher: Matcher, photos: Sequence[Upload]) -> Warp:
        """The dense warp of two photos, both ways; the last ones are kept."""
        first, second = (self.prepare(matcher, photo) for photo in photos)
        key = (matcher.file.name, photos[0].digest, photos[1].digest, matcher.config.resolution)
        with self._lock:
            return self._warps.get(key, lambda: matcher.warp(first, second))

    def register(
        self, matcher: Matcher, photos: Sequence[Upload], found: MatchedPair, kind: str
    ) -> Registration:
        """How photo 2 lies on photo 1, from their matches; the last ones are kept.

        A registration that is not to be trusted has its `refusal`; `RegistrationRefused`: there is none.
        """
        from coam.registration import RegisterOptions
        from coam.registration.fitting import FitOptions
        from coam.registration.pair import find_registration
        from coam.registration.rasters import of_array

        options = RegisterOptions(fit=FitOptions(model=kind))
        moving, fixed = (of_array(photos[n].image.rgb, PHOTO_LABELS[n]) for n in (1, 0))
        back = turned_round(found.matches)
        with self._lock:
            return self._registrations.get(
                (*_pair_key(matcher, photos), kind),
                lambda: find_registration(moving, fixed, matcher, options, back),
            )

    def explain(
        self, matcher: Matcher, photo0: PreparedImage, photo1: PreparedImage, point: tuple[float, float]
    ) -> Explanation:
        """Attention and similarity of one point of photo 0."""
        with self._lock:
            return matcher.explain(photo0, photo1, point)

    def stylize(
        self, matcher: Matcher, view: Upload, style: Upload, strength: float = 1.0, force: bool = False
    ) -> Stylized:
        """VIEW in the style of STYLE; the same pair at another strength is only blended again.

        Photos of different places raise `NoOverlapError` unless `force` is set.
        """
        from coam.stylization import NoOverlapError, Stylizer
        from coam.stylization.apply import LEAST_OVERLAP, blend
        from coam.stylization.network import load_network

        prepared = self.prepare(matcher, view), self.prepare(matcher, style)

        def work() -> Stylized:
            if self._stylizer is None:
                self._stylizer = load_network()
            stylizer = Stylizer(matcher, self._stylizer)
            return stylizer.stylize(*prepared, force=force)  # type: ignore[arg-type]  # they pass through

        key = (matcher.file.name, view.digest, style.digest, matcher.config.resolution)
        with self._lock:
            full = self._stylized.get(key, work)
        if full.overlap < LEAST_OVERLAP and not force:
            raise NoOverlapError(full.overlap)
        return replace(full, picture=blend(full.view, full.picture, strength))


def two_view_models(matches: Matches) -> tuple[TwoViewModel, ...]:
    """The homography and the fundamental matrix of the matches: those that they determine."""
    found = matches.homography(), matches.fundamental()
    return tuple(model for model in found if model is not None)


def turned_round(matches: Matches) -> Matches:
    """The matches from photo 1 to photo 0."""
    sides = {
        f"{name}{side}": getattr(matches, f"{name}{1 - side}")
        for name in ("points", "ids", "size", "grid", "image")
        for side in (0, 1)
    }
    return replace(matches, **sides)


def _pair_key(matcher: Matcher, photos: Sequence[Upload]) -> tuple[Any, ...]:
    return (matcher.file.name, photos[0].digest, photos[1].digest, matcher.config)


def draw_or_lines(matches: Matches, kind: str) -> tuple[Image.Image, str]:
    """The picture a visitor chose, one of `PICTURES`; lines and a note where the photos cannot be aligned."""
    from coam.viz import align, draw_aligned, draw_matches

    if kind not in PICTURES:
        raise ConfigError(f"there is no picture {kind!r}; choose one of {', '.join(PICTURES)}")
    if kind != "checkerboard":
        return draw_matches(matches, style=PICTURES[kind]), ""  # type: ignore[arg-type]
    try:
        return draw_aligned(align(matches)), ""
    except DataError as error:
        return draw_matches(matches), str(error)


def meaning_of(matches: Matches) -> str:
    """What the overlap score says, in words."""
    if not math.isfinite(matches.overlap):
        return "this model has no overlap score"
    words = "the same place, almost surely" if matches.overlap >= 0.9 else "probably the same place"
    return "probably not the same place" if matches.is_doubtful else words


def summary_of(matches: Matches, seconds: float, drawing_note: str = "") -> str:
    """One paragraph of Markdown about `matches`, which took `seconds`."""
    looks = matches.meta.get("looks", 1)
    times = "one look" if looks == 1 else f"{looks} looks"
    lines = [f"**{len(matches):,} matches** from {times} in {seconds:.1f} s"]
    if math.isfinite(matches.overlap):
        lines.append(f"overlap score **{matches.overlap:.2f}**: {meaning_of(matches)}")
    else:
        lines.append(meaning_of(matches))
    if not matches.meta.get("trained", True):
        lines.append("⚠ this model is untrained, so its matches mean nothing")
    if drawing_note:
        lines.append(drawing_note)
    return "  ·  ".join(lines)


def figures_of(found: MatchedPair) -> list[tuple[str, str]]:
    """What stands beside the picture of a matched pair: (name, value)."""
    rows = [(f"seconds {part}", f"{seconds:.2f}") for part, seconds in found.seconds.items()]
    overlap = found.matches.overlap
    if math.isfinite(overlap):
        rows.insert(0, ("overlap score (0 to 1)", f"{overlap:.2f}: {meaning_of(found.matches)}"))
    return rows


def write_results(matches: Matches, picture: Image.Image, page: str, folder: Path) -> list[str]:
    """Write matches.npz, matches.html (`page`) and matches.png into `folder`; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    matches.save(folder / "matches.npz")
    write_text(folder / "matches.html", page)
    picture.save(folder / "matches.png", compress_level=1)  # photos hardly get smaller, only slower
    return [str(folder / name) for name in ("matches.npz", "matches.html", "matches.png")]
