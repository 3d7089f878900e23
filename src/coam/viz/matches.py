"""Match pictures that stay readable from ten matches to many thousands."""

from __future__ import annotations

from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ConfigError
from coam.geometry.two_view_models import TwoViewModel
from coam.types import FloatArray, IntArray, Matches, Size, matches_in_words
from coam.viz.canvas import (
    Layout,
    PairLayout,
    Swatch,
    draw_dots,
    draw_lines,
    faded,
    lay_out,
    paste_pair,
    photos_of,
    resize,
    with_caption,
)
from coam.viz.colours import (
    CORRECT,
    DOUBTFUL,
    WRONG,
    ByteImage,
    colour_table,
    colourise,
    plane_colours,
    score_end,
)

Style = Literal["side", "overlay", "flow"]
Colour = Literal["score", "correct"]
_ACROSS = np.stack([np.linspace(0, 1, 64), np.full(64, 0.5)], axis=-1).astype(np.float32)
_FLOW_LEGEND = Swatch(plane_colours(_ACROSS, (0, 0), (1, 1)), before="same colour = same place")


def draw_matches(
    matches: Matches,
    images: tuple[Any, Any] | None = None,
    style: Style = "side",
    *,
    max_lines: int = 200,
    colour: Colour | None = None,
    correct: npt.NDArray[np.bool_] | None = None,
    inliers: TwoViewModel | npt.NDArray[np.bool_] | None = None,
    layout: Layout = "auto",
    width: int = 1600,
    caption: bool = True,
) -> Image.Image:
    """A picture of `matches` over their photos.

    images: the two photos, when `matches` does not carry them.
    style: "side" draws lines between the photos side by side; "overlay" lays photo 1 (bluish) over photo 0
        (orange) and draws each match as the way from its place in photo 0 to the dot at its place in photo 1;
        "flow" draws no lines: corresponding points have the same colour, given by the place in photo 0.
    max_lines: with more matches than this, an evenly spread subset gets lines; every match has its dots.
    colour: "score" or "correct", which needs a mask `correct` (N,) and is the default with it. The default is
        "score", and plain grey with thin lines where the photos probably do not show the same place.
    inliers: instead of `correct`, a model of `Matches.homography`, `.pose` ... or a mask (N,): which matches
        it explains.
    width: width of the canvas in pixels (height at most 0.8 of it); photos are scaled to fit.
    caption: a strip below with the number of matches and the legend.
    """
    if style not in ("side", "overlay", "flow"):
        raise ConfigError(f"style {style!r} does not exist; choose side, overlay or flow")
    photo0, photo1 = photos_of(matches, images)
    words = ("correct", "wrong")
    if inliers is not None:
        if correct is not None:
            raise ConfigError("give correct= or inliers=, not both")
        correct, words = _inlier_mask(matches, inliers), ("inliers", "outliers")
    mask = _correct_mask(matches, colour, correct)
    doubtful = matches.is_doubtful and colour is None and mask is None
    if style == "overlay":
        place = _overlaid(matches.size0, matches.size1, width)
        canvas = _tinted_blend(resize(photo0, place.shown0), resize(photo1, place.shown1))
    else:
        place = lay_out(matches.size0, matches.size1, layout, width)
        fade = {"saturation": 0.0, "brightness": 0.6} if style == "flow" else {}
        # Shrunk first: fading a photo of 50 megapixels would take seconds.
        shown0, shown1 = resize(photo0, place.shown0), resize(photo1, place.shown1)
        canvas = paste_pair(place, faded(shown0, **fade), faded(shown1, **fade))
    at0, at1 = place.place(0, matches.points0), place.place(1, matches.points1)
    colours, swatches = _colours(matches, mask, doubtful, words)
    if style == "flow":
        colours, swatches = flow_colours(matches.points0), (_FLOW_LEGEND,)
    # Worst first, so that the best lie on top; with a mask the wrong ones do, so that none is hidden.
    order = np.argsort(matches.scores, kind="stable") if mask is None else np.lexsort((matches.scores, ~mask))
    chosen = np.arange(0)
    if style != "flow":
        chosen = order[np.isin(order, spread_subset(matches.points0, matches.scores, max_lines))]
        alpha, thickness = (0.45, 1) if doubtful else _line_weight(len(chosen), width)
        canvas = draw_lines(canvas, at0[chosen], at1[chosen], colours[chosen], alpha, thickness)
    radius = dot_radius(len(matches), width)
    for points in (at1,) if style == "overlay" else (at0, at1):
        canvas = draw_dots(canvas, points[order], colours[order], radius)
    if not caption:
        return Image.fromarray(canvas)
    return with_caption(canvas, _summary(matches, len(chosen), style), swatches)


def spread_subset(points: FloatArray, scores: FloatArray, count: int) -> IntArray:
    """Indices of `count` of the points (N, 2), evenly spread over the area they cover, good scores preferred.

    The area is cut into about `count` cells; each gives its best point, then its second best, and so on.
    """
    if len(points) <= count:
        return np.arange(len(points))
    if count <= 0:
        return np.arange(0)
    low = points.min(axis=0)
    span = np.maximum(points.max(axis=0) - low, 1e-6)
    across = max(1, round(float(np.sqrt(count * span[0] / span[1]))))
    down = max(1, round(count / across))
    cell_xy = np.minimum((points - low) / span * (across, down), (across - 1, down - 1)).astype(np.int64)
    cell = cell_xy[:, 1] * across + cell_xy[:, 0]
    by_cell = np.lexsort((-scores, cell))
    starts = np.r_[0, np.flatnonzero(np.diff(cell[by_cell])) + 1]
    lengths = np.diff(np.r_[starts, len(cell)])
    rank = np.arange(len(cell)) - np.repeat(starts, lengths)
    first = by_cell[np.lexsort((-scores[by_cell], rank))]
    return np.sort(first[:count])


def flow_colours(points0: FloatArray) -> ByteImage:
    """A colour (N, 3) for each match by its place in photo 0; the range is that of most matches."""
    if len(points0) == 0:
        return np.zeros((0, 3), np.uint8)
    low, high = np.percentile(points0, (2, 98), axis=0)
    return plane_colours(points0, low, high)


def dot_radius(count: int, width: int = 1600) -> float:
    """Radius of each of `count` dots on a canvas `width` pixels wide: 5 for ten, 1.8 for thousands."""
    return float(np.clip(5.0 * (30 / max(count, 30)) ** 0.22, 1.8, 5.0) * max(width / 1600, 0.5))


def _inlier_mask(matches: Matches, inliers: TwoViewModel | npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    if isinstance(inliers, TwoViewModel):
        return inliers.explains(matches.points0, matches.points1)
    return np.asarray(inliers)


def _correct_mask(
    matches: Matches, colour: Colour | None, correct: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_] | None:
    if colour not in (None, "score", "correct"):
        raise ConfigError(f"colour {colour!r} does not exist; choose score or correct")
    if colour == "score" or (colour is None and correct is None):
        return None
    if correct is None:
        raise ConfigError("colour='correct' needs correct=, a boolean mask with one value per match")
    mask = np.asarray(correct, dtype=bool)
    if mask.shape != (len(matches),):
        raise ConfigError(
            f"the mask has shape {mask.shape}; give one value for each of the {len(matches)} matches"
        )
    return mask


def _colours(
    matches: Matches, mask: npt.NDArray[np.bool_] | None, doubtful: bool, words: tuple[str, str]
) -> tuple[ByteImage, tuple[Swatch, ...]]:
    if mask is not None:
        colours = np.where(mask[:, None], np.array(CORRECT, np.uint8), np.array(WRONG, np.uint8))
        good = int(mask.sum())
        return colours, (
            Swatch(np.array([CORRECT], np.uint8), after=f"{good:,} {words[0]}"),
            Swatch(np.array([WRONG], np.uint8), after=f"{len(mask) - good:,} {words[1]}"),
        )
    if doubtful or len(matches) == 0:
        return np.full((len(matches), 3), DOUBTFUL, np.uint8), ()
    high = score_end(matches.scores)
    legend = Swatch(colour_table("score"), before="score 0", after=f"{high:.2f}")
    return colourise(matches.scores, 0.0, high), (legend,)


def _line_weight(count: int, width: int) -> tuple[float, int]:
    """(alpha, thickness) of `count` lines."""
    alpha = float(np.clip(0.95 * (40 / max(count, 40)) ** 0.35, 0.3, 0.95))
    return alpha, 2 if count <= 60 and width >= 1000 else 1


def _overlaid(size0: Size, size1: Size, width: int) -> PairLayout:
    scale = min(width / size0[0], 0.8 * width / size0[1])
    shown = max(1, round(size0[0] * scale)), max(1, round(size0[1] * scale))
    return PairLayout(size0, size1, shown, shown, (0, 0), shown)


def _tinted_blend(image0: ByteImage, image1: ByteImage) -> ByteImage:
    """Photo 0 in faint orange light, photo 1 in faint blue light: grey where they agree."""
    grey0, grey1 = (cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32) for image in (image0, image1))
    mean = (grey0 + grey1) / 2
    blend = (0.6 * mean[..., None] + 0.4 * np.stack([grey0, mean, grey1], axis=-1)) * 0.75
    return np.rint(blend).astype(np.uint8)


def _summary(matches: Matches, lines: int, style: Style) -> str:
    words = matches_in_words(len(matches))
    if style != "flow" and 0 < lines < len(matches):
        words += f", {lines:,} lines drawn"
    if np.isfinite(matches.overlap):
        share = f"{100 * matches.overlap:.0f} %"
        words += (
            f"  ·  probably not the same place ({share})"
            if matches.is_doubtful
            else f"  ·  same place: {share}"
        )
    return words
