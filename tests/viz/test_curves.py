"""Curves as pictures: size and colours."""

from __future__ import annotations

import re

import numpy as np
import pytest

from coam.errors import ConfigError
from coam.viz import draw_curves
from coam.viz.curves import curves_svg


def test_curves_have_the_asked_size_and_refuse_nothing():
    x, labels = np.arange(1, 11), {"x_label": "threshold in pixels", "y_label": "accuracy"}
    lines = {"ours": (x, np.linspace(0.3, 0.8, 10)), "theirs": (x, np.linspace(0.2, 0.6, 10))}
    picture = draw_curves(lines, **labels, y_range=(0, 1))
    assert picture.size == (900, 560)
    assert picture.getpixel((2, 2)) == (255, 255, 255)
    colours = {colour for _, colour in picture.getcolors(100_000)}
    assert {(0, 114, 178), (213, 94, 0)} <= colours
    with pytest.raises(ConfigError, match="no curve"):
        draw_curves({}, x_label="x", y_label="y")


def test_an_svg_of_curves_stands_alone_and_is_the_same_every_time() -> None:
    lines = {f"a<b {i}": ([0, 1, 2], [0, 0.1 * i, None]) for i in range(1, 8)}
    drawn = [curves_svg(lines, x_label="x & y", y_label="share", y_range=(0, 1)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith("<svg ")
    assert drawn[0].rstrip().endswith("</svg>")
    for outside in ("http", "href", "<!DOCTYPE"):
        assert outside not in drawn[0]
    assert "a&lt;b 7" in drawn[0]  # text, not outlines
    styles = re.findall(r"stroke-dasharray: ([\d. ,]+)", drawn[0])
    assert len(set(styles)) == 6  # besides one solid line: told apart without colour
