"""Matches in a notebook: a line of numbers, and the picture where the photos are at hand."""

from __future__ import annotations

import html
import io

from PIL import Image

from coam.errors import CoamError
from coam.types import Matches
from coam.viz.html import picture_uri
from coam.viz.matches import draw_matches

WIDTH = 1000  # pixels: about the width of a cell


def matches_as_png(matches: Matches) -> bytes | None:
    """The picture as .png; None where the photos cannot be opened."""
    picture = _picture(matches)
    return None if picture is None else _encoded(picture, "PNG")


def matches_as_html(matches: Matches) -> str:
    """The `repr`, the mean score and the settings of the pair, then the picture."""
    facts = [html.escape(repr(matches))]
    if len(matches):
        facts.append(f"mean score {float(matches.scores.mean()):.3f}")
    for key in ("model", "resolution", "looks", "seconds"):
        if matches.meta.get(key) is not None:
            facts.append(f"{key} {html.escape(str(matches.meta[key]))}")
    line = f"<div>{' &middot; '.join(facts)}</div>"
    picture = _picture(matches)
    if picture is None:
        return line
    # JPEG: a notebook keeps every output in its file.
    uri = picture_uri(_encoded(picture, "JPEG"), "jpeg")
    return f'{line}<img src="{uri}" width="{picture.width}" alt="matches">'


def _picture(matches: Matches) -> Image.Image | None:
    """None where the photos are neither kept nor in their files any more: showing must not fail."""
    try:
        return draw_matches(matches, width=WIDTH)
    except CoamError:
        return None


def _encoded(picture: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, kind)
    return buffer.getvalue()
