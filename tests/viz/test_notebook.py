"""Matches as a notebook shows them."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

from PIL import Image

from coam.types import Matches
from coam.viz.notebook import WIDTH


def test_a_picture_where_there_are_photos(shifted_pair: Matches) -> None:
    png = shifted_pair._repr_png_()
    assert png is not None
    picture = Image.open(io.BytesIO(png))
    assert picture.format == "PNG"
    assert picture.width == WIDTH
    page = replace(shifted_pair, meta={"model": "<b>", "looks": 2})._repr_html_()
    assert "450 matches, photos of 180 x 120" in page
    assert "mean score 0.500 &middot; model &lt;b&gt; &middot; looks 2" in page
    (data,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == picture.size


def test_numbers_alone_where_there_are_none(shifted_pair: Matches) -> None:
    bare = replace(shifted_pair, image0=None, image1=None)[:0]
    assert bare._repr_png_() is None
    assert bare._repr_html_() == "<div>Matches(0 matches, photos of 180 x 120 and 180 x 120)</div>"
