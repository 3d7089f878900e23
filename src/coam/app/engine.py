"""The work behind the web app, free of any web framework: photos in, pictures and words out."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from coam.app.kept import Kept
from coam.app.limits import DEFAULT_LIMITS, Limits
from coam.errors import CoamError, ConfigError, DataError, ImageError
from coam.types import Matches

if TYPE_CHECKING:
    from coam.dense_matching import Looks, MatcherConfig
    from coam.explanation import Explanation
    from coam.images import LoadedImage
    from coam.matcher import Matcher, PreparedImage
    from coam.stylization import Stylized
    from coam.stylization.weights import StylizerFile

MatcherLoader = Callable[[str, str], "Matcher"]  # of a model's name and a device's
LOOKS: dict[str, Looks] = {
    "one look": "once",
    "aligned look": "align",
    "search zooms and turns": "search",
}
PICTURES = {
    "lines": "lines",
    "same colour = same place": "flow",
    "overlay": "overlay",
    "checkerboard": "checkerboard",
}


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
    from coam.stylization.weights import DEFAULT_STYLIZER

    return packaged_weights(DEFAULT_STYLIZER) is not None


@dataclass(frozen=True)
class Upload:
    """One photo as it came: its bytes are read once, its digest names it in the caches."""

    image: LoadedImage
    digest: str


class Engine:
    """Matchers and encoded photos, kept between requests; safe to use from several threads.

    One lock serialises the network: two jobs at once would only share the same cores and double the memory.
    """

    def __init__(
        self, loader: MatcherLoader = default_loader, limits: Limits = DEFAULT_LIMITS, device: str = "auto"
    ) -> None:
        self.limits = limits
        self.device = device
        self._loader = loader
        self._models: dict[str, Matcher] = {}
        self._matchers: Kept[tuple[str, MatcherConfig], Matcher] = Kept(limits.kept_settings)
        self._photos: Kept[str, LoadedImage] = Kept(limits.kept_photos)
        self._prepared: Kept[tuple[str, str, int], PreparedImage] = Kept(limits.kept_photos)
        self._stylized: Kept[tuple[str, str, str, int], Stylized] = Kept(limits.kept_results)
        self._stylizer: StylizerFile | None = None
        self._lock = threading.Lock()

    def read(self, path: str | os.PathLike[str] | None, label: str) -> Upload:
        """The photo at `path`, within the limits; every complaint names it by `label`, never by its path."""
        from coam.images import load_image

        if path is None:
            raise ConfigError(f"{label} is missing: upload it or choose an example")
        try:
            size = os.path.getsize(path)
            if size > self.limits.upload_bytes:
                most = self.limits.upload_bytes / 2**20
                raise ImageError(f"{label} has {size / 2**20:.0f} MB; at most {most:.0f} MB are allowed")
            content = Path(path).read_bytes()
        except OSError as error:
            raise ImageError(f"{label} is no longer there; upload it again") from error
        digest = hashlib.sha256(content).hexdigest()
        try:
            with self._lock:
                image = self._photos.get(
                    digest, lambda: load_image(content, max_pixels=self.limits.photo_pixels)
                )
        except CoamError as error:
            words = str(error).removeprefix("the given bytes: ").replace("the given bytes", "this file")
            raise ImageError(f"{label}{' ' if words.startswith('is ') else ': '}{words}") from error
        return Upload(image, digest)

    def matcher(self, model: str, resolution: int, max_matches: int = 1, looks: str = "one look") -> Matcher:
        """The matcher with these settings, `looks` one of `LOOKS`; networks stay loaded."""
        from coam.matcher import Matcher

        if model not in model_names():
            raise ConfigError(f"there is no model {model!r}; choose one of {', '.join(model_names())}")
        if resolution not in self.limits.resolutions:
            raise ConfigError(f"resolution must be one of {', '.join(map(str, self.limits.resolutions))}")
        if not 1 <= max_matches <= self.limits.most_matches:
            raise ConfigError(f"the number of matches must be between 1 and {self.limits.most_matches}")
        if looks not in LOOKS:
            raise ConfigError(f"there is no way to look {looks!r}; choose one of {', '.join(LOOKS)}")
        with self._lock:
            if model not in self._models:
                self._models[model] = self._loader(model, self.device)
            base = self._models[model]
            config = replace(base.config, resolution=resolution, max_matches=max_matches, looks=LOOKS[looks])
            return self._matchers.get((model, config), lambda: Matcher(base.file, config, base.device))

    def prepare(self, matcher: Matcher, photo: Upload) -> PreparedImage:
        """The encoded photo; a photo seen lately with the same model and resolution is not encoded again."""
        key = (matcher.file.name, photo.digest, matcher.config.resolution)
        with self._lock:
            return self._prepared.get(key, lambda: matcher.prepare(photo.image))

    def match(self, matcher: Matcher, photo0: PreparedImage, photo1: PreparedImage) -> Matches:
        """Matches of two encoded photos."""
        with self._lock:
            return matcher.match(photo0, photo1)

    def explain(
        self, matcher: Matcher, photo0: PreparedImage, photo1: PreparedImage, point: tuple[float, float]
    ) -> Explanation:
        """Attention and similarity of one point of photo 0."""
        with self._lock:
            return matcher.explain(photo0, photo1, point)

    def stylize(
        self, matcher: Matcher, view: Upload, style: Upload, strength: float = 1.0, force: bool = False
    ) -> Stylized:
        """VIEW in the style of STYLE; the same pair at another strength is only mixed anew.

        Photos of different places raise `NoOverlapError` unless `force` is set.
        """
        from coam.stylization import NoOverlapError, Stylizer
        from coam.stylization.apply import LEAST_OVERLAP, blend
        from coam.stylization.weights import load_network

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


def picture_of(matches: Matches, kind: str) -> Image.Image:
    """The picture a visitor chose, one of `PICTURES`."""
    from coam.viz import align, draw_aligned, draw_matches

    if kind not in PICTURES:
        raise ConfigError(f"there is no picture {kind!r}; choose one of {', '.join(PICTURES)}")
    style = PICTURES[kind]
    if style == "checkerboard":
        return draw_aligned(align(matches))
    return draw_matches(matches, style={"lines": "side"}.get(style, style))  # type: ignore[arg-type]


def summary_of(matches: Matches, seconds: float, drawing_note: str = "") -> str:
    """One paragraph of Markdown about `matches`, which took `seconds`."""
    import math

    looks = matches.meta.get("looks", 1)
    times = "one look" if looks == 1 else f"{looks} looks"
    lines = [f"**{len(matches):,} matches** from {times} in {seconds:.1f} s"]
    if math.isfinite(matches.overlap):
        verdict = "the same place" if matches.overlap >= 0.5 else "probably not the same place"
        lines.append(f"overlap score **{matches.overlap:.2f}**: {verdict}")
    else:
        lines.append("overlap score: this model has none")
    if not matches.meta.get("trained", True):
        lines.append("⚠ this model is untrained, so its matches mean nothing")
    if drawing_note:
        lines.append(drawing_note)
    return "  ·  ".join(lines)


def write_results(matches: Matches, picture: Image.Image, folder: Path) -> list[str]:
    """Write matches.npz, matches.html and matches.png into `folder`; gives their paths."""
    from coam.viz import match_page

    folder.mkdir(parents=True, exist_ok=True)
    matches.save(folder / "matches.npz")
    (folder / "matches.html").write_text(match_page(matches), encoding="utf-8")
    picture.save(folder / "matches.png", compress_level=1)  # photos hardly get smaller, only slower
    return [str(folder / name) for name in ("matches.npz", "matches.html", "matches.png")]


def draw_or_lines(matches: Matches, kind: str) -> tuple[Image.Image, str]:
    """The chosen picture; lines and a note where the photos cannot be aligned for it."""
    try:
        return picture_of(matches, kind), ""
    except DataError as error:
        return picture_of(matches, "lines"), str(error)
