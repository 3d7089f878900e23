"""The matches of a pair as an interactive page: pan, zoom, hover, filter, flicker."""

from __future__ import annotations

from typing import Any

import numpy as np

from coam.errors import DataError
from coam.types import FloatArray, IntArray, Matches, matches_in_words
from coam.viz.canvas import fitted, photos_of, resize
from coam.viz.colours import DOUBTFUL, colour_table, score_end
from coam.viz.html import base64_array, fill_page, photo_uri
from coam.viz.matches import flow_colours, spread_subset
from coam.viz.overlay import align, flicker_frames


def match_page(
    matches: Matches,
    images: tuple[Any, Any] | None = None,
    *,
    names: tuple[str, str] = ("photo 1", "photo 2"),
    longest: int = 1600,
) -> str:
    """A self-contained HTML page of `matches`; it works from a file and asks no other host for anything.

    images: the two photos, when `matches` does not carry them; names: what to call them.
    longest: photos are embedded with their longer side at most this many pixels.
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
        "doubtfulColour": "rgb({},{},{})".format(*DOUBTFUL),
        "model": str(matches.meta.get("model", "")),
        "flicker": _flicker(matches, photos, min(longest, 1200)),
    }
    return fill_page("match.html", f"{names[0]} and {names[1]}: {matches_in_words(len(matches))}", data)


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
