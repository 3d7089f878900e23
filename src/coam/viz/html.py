"""Self-contained HTML pages: a template of this package plus data, no request to anywhere."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.viz.colours import ByteImage

# Forbids every request, so that even a mistake in a page cannot leave the reader's machine.
_POLICY = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def fill_page(name: str, title: str, data: dict[str, Any]) -> str:
    """The page `name` (a file in `coam/viz/pages`) with its `title` and its JSON `data`.

    Names in `data` come from users: the JSON is written so that no text in it can end its script element, and
    the pages show it as text only.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _filled(_template(name), {"TITLE": html.escape(title), "DATA": text})


@cache
def _template(name: str) -> str:
    """The page in the shell that all share; its file holds a style, a body and a script, in this order."""
    folder = resources.files("coam.viz").joinpath("pages")
    page, shell = (folder.joinpath(file).read_text(encoding="utf-8") for file in (name, "shell.html"))
    style, rest = page.removeprefix("<style>\n").split("</style>\n")
    body, script = rest.removesuffix("</script>\n").split("<script>\n")
    return _filled(shell, {"POLICY": _POLICY, "STYLE": style, "BODY": body, "SCRIPT": script})


def _filled(text: str, parts: dict[str, str]) -> str:
    """`text` with @@NAME@@ replaced in one pass: what is put in is never searched for marks."""
    return re.sub(r"@@([A-Z]+)@@", lambda mark: parts.get(mark[1], mark[0]), text)


def base64_array(array: npt.NDArray[Any]) -> str:
    """The little-endian bytes of `array`, row by row, as base64 text."""
    contiguous = np.ascontiguousarray(array)
    return base64.b64encode(contiguous.astype(contiguous.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def photo_uri(image: ByteImage, quality: int = 88) -> str:
    """`image` (H, W, 3) as a JPEG data URI."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return picture_uri(buffer.getvalue(), "jpeg")


def picture_uri(content: bytes, kind: str) -> str:
    """The bytes of a picture file ("jpeg", "png") as a data URI."""
    return f"data:image/{kind};base64," + base64.b64encode(content).decode("ascii")
