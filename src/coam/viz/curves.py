"""Curves as pictures, for reports. The only part of `coam.viz` that needs matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ConfigError, import_extra

# Okabe and Ito's colours; the dashes (points on, points off) tell lines apart where colour cannot.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_DASHES = ((), (7, 4), (2, 3), (9, 3, 2, 3), (5, 2), (1, 2), (12, 4))

Curves = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]  # name -> x (K,), y (K,)


def draw_curves(
    curves: Curves,
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    y_range: tuple[float, float] | None = None,
    size: tuple[int, int] = (900, 560),
) -> Image.Image:
    """One line per curve, in a picture of `size` (width, height) pixels."""
    figure = _figure(size)
    _plot(figure.subplots(), curves, x_label, y_label, title, y_range, markers="osD^v")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer).convert("RGB")


def curves_svg(
    curves: Curves, *, x_label: str, y_label: str, y_range: tuple[float, float] | None = None
) -> str:
    """One line per curve, as an <svg> element to stand in an HTML page: it refers to nothing outside."""
    figure = _figure((760, 470))
    import matplotlib

    text = io.StringIO()
    # Text stays text; with a fixed salt and no date, equal curves are equal text.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "coam", "font.sans-serif": ["DejaVu Sans"]}
    with matplotlib.rc_context(settings | {"text.parse_math": False}):
        axes = figure.subplots()
        _plot(axes, curves, x_label, y_label, "", y_range)
        axes.tick_params(length=0)  # ticks, like markers, would be references
        axes.spines[["left", "bottom"]].set_color("#8a94a0")
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    element = text.getvalue()[text.getvalue().index("<svg") :]
    # HTML knows the name space of <svg>, and the addresses would look like requests.
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", element)


def _figure(size: tuple[int, int]) -> Any:
    # A figure draws itself as PNG or SVG without a window.
    make_figure = import_extra("matplotlib.figure", "eval").Figure
    return make_figure(figsize=(size[0] / 100, size[1] / 100), dpi=100, layout="constrained")


def _plot(
    axes: Any,
    curves: Curves,
    x_label: str,
    y_label: str,
    title: str,
    y_range: tuple[float, float] | None,
    markers: str = "",
) -> None:
    if not curves:
        raise ConfigError("there is no curve to draw; give at least one name -> (x, y)")
    for index, (name, (x, y)) in enumerate(curves.items()):
        (line,) = axes.plot(
            np.asarray(x, dtype=np.float64),
            np.asarray(y, dtype=np.float64),
            color=_COLOURS[index % len(_COLOURS)],
            marker=markers[index % len(markers)] if markers else "",
            markersize=5,
            linewidth=2,
            label=name,
        )
        if dashes := _DASHES[index % len(_DASHES)]:
            line.set_dashes(dashes)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, loc="left")
    if y_range is not None:
        axes.set_ylim(*y_range)
    axes.grid(color="#8a94a0", alpha=0.35, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, handlelength=4)
