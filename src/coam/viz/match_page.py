"""The matches of a pair as an interactive page: pan, zoom, filter, inliers, epipolar lines, flicker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coam.errors import DataError
from coam.geometry.two_view_models import (
    EssentialMatrix,
    FundamentalMatrix,
    Homography,
    RelativePose,
    TwoViewModel,
)
from coam.types import FloatArray, IntArray, Matches, matches_in_words
from coam.viz.canvas import fitted, photos_of, resize
from coam.viz.colours import CORRECT, DOUBTFUL, WRONG, Rgb, colour_table, score_end
from coam.viz.html import base64_array, fill_page, photo_uri
from coam.viz.matches import flow_colours, spread_subset
from coam.viz.overlay import align, flicker_frames


def match_page(
    matches: Matches,
    images: tuple[Any, Any] | None = None,
    *,
    names: tuple[str, str] = ("photo 1", "photo 2"),
    longest: int = 1600,
    models: Sequence[TwoViewModel] = (),
    figures: Sequence[tuple[str, str]] = (),
    pick: bool = False,
) -> str:
    """A self-contained HTML page of `matches`; it works from a file and asks no other host for anything.

    images: the two photos, when `matches` does not carry them; names: what to call them.
    longest: photos are embedded with their longer side at most this many pixels.
    models: homographies, fundamental matrices, poses of these matches: lines can be coloured by inliers of
        one of them, at any threshold, and a clicked point shows its epipolar lines, or where it is mapped to.
    figures: (name, value) texts to stand beside the picture with those of the page.
    pick: whether the page begins with the first model's inliers, and clicks choose points.
    """
    photos = photos_of(matches, images)
    shown = [
        resize(photo, fitted(size, min(longest, max(size))))
        for photo, size in zip(photos, (matches.size0, matches.size1), strict=True)
    ]
    table = np.column_stack([matches.points0, matches.points1, matches.scores]).astype(np.float32)
    data = {
        "names": list(names),
        "sizes": [list(matches.size0), list(matches.size1)],
        "photos": [photo_uri(photo) for photo in shown],
        "count": len(matches),
        "matches": base64_array(table),  # (N, 5) float32: x0, y0, x1, y1, score
        "order": base64_array(progressive_order(matches.points0, matches.scores).astype(np.uint32)),
        "scoreColours": base64_array(colour_table("score")),  # from score 0 to scoreEnd
        "scoreEnd": score_end(matches.scores),
        "placeColours": base64_array(flow_colours(matches.points0)),
        "overlap": float(matches.overlap) if np.isfinite(matches.overlap) else None,
        "doubtful": matches.is_doubtful,
        "doubtfulColour": _css(DOUBTFUL),
        "inlierColours": [_css(CORRECT), _css(WRONG)],
        "models": [_model(model, matches) for model in models],
        "figures": [list(row) for row in figures],
        "pick": pick,
        "model": str(matches.meta.get("model", "")),
        "flicker": _flicker(matches, photos, min(longest, 1200)),
    }
    return fill_page("match.html", f"{names[0]} and {names[1]}: {matches_in_words(len(matches))}", data)


def _css(colour: Rgb) -> str:
    return "rgb({},{},{})".format(*colour)


def _model(model: TwoViewModel, matches: Matches) -> dict[str, Any]:
    """What the page needs of a model: its residuals (N,) and its 3x3 matrix, row by row."""
    residuals = model.residuals_of(matches.points0, matches.points1).astype(np.float32)
    name, matrix = model.kind, {}
    if isinstance(model, Homography):
        matrix = {"homography": model.matrix.ravel().tolist()}
    elif isinstance(model, FundamentalMatrix):
        name, matrix = "fundamental matrix", {"fundamental": model.matrix.ravel().tolist()}
    elif isinstance(model, EssentialMatrix | RelativePose):
        matrix = {"fundamental": model.fundamental.ravel().tolist()}
    return {"name": name, "threshold": model.threshold, "residuals": base64_array(residuals), **matrix}


def progressive_order(points: FloatArray, scores: FloatArray) -> IntArray:
    """All indices (N,) in an order whose every beginning is spread evenly over the photo."""
    remaining = np.arange(len(points))
    parts: list[IntArray] = []
    share = 16
    while len(remaining):
        chosen = spread_subset(points[remaining], scores[remaining], share)
        best_first = chosen[np.argsort(-scores[remaining[chosen]], kind="stable")]
        parts.append(remaining[best_first])
        remaining = np.delete(remaining, chosen)
        share *= 2
    return np.concatenate(parts) if parts else np.arange(0)


def _flicker(matches: Matches, photos: tuple[Any, Any], longest: int) -> dict[str, Any] | None:
    try:
        pair = align(matches, photos, longest=longest)
    except DataError:
        return None  # the page says that the photos cannot be aligned
    first, second = flicker_frames(pair)
    return {
        "frames": [photo_uri(np.asarray(first)), photo_uri(np.asarray(second))],
        "inliers": int(pair.inliers.sum()),
    }
