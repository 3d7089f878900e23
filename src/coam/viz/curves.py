"""Curves as pictures, for reports. The only part of `coam.viz` that needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ConfigError, MissingExtraError

# Okabe and Ito's colours; the dashes tell lines apart where colour cannot.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")


def draw_curves(
    curves: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    y_range: tuple[float, float] | None = None,
    size: tuple[int, int] = (900, 560),
) -> Image.Image:
    """One line per entry name -> (x (K,), y (K,)), in a picture of `size` (width, height) pixels."""
    if not curves:
        raise ConfigError("there is no curve to draw; give at least one name -> (x, y)")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "eval") from error
    figure = Figure(figsize=(size[0] / 100, size[1] / 100), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, (name, (x, y)) in enumerate(curves.items()):
        axes.plot(
            np.asarray(x),
            np.asarray(y),
            _DASHES[(index // 2) % len(_DASHES)],
            color=_COLOURS[index % len(_COLOURS)],
            marker="osD^v"[index % 5],
            markersize=5,
            linewidth=2,
            label=name,
        )
    _style(axes, x_label, y_label, title, y_range)
    return _render(figure)


def draw_accuracy_curves(
    accuracies: Mapping[str, npt.ArrayLike], *, title: str = "", first_threshold: int = 1
) -> Image.Image:
    """Mean matching accuracy (in [0, 1]) of each method at `first_threshold`, + 1, + 2, ... pixels."""
    curves = {}
    for name, values in accuracies.items():
        array = np.asarray(values, dtype=np.float64)
        curves[name] = (np.arange(first_threshold, first_threshold + len(array)), array)
    return draw_curves(
        curves, x_label="threshold in pixels", y_label="mean matching accuracy", title=title, y_range=(0, 1)
    )


def _style(axes: Any, x_label: str, y_label: str, title: str, y_range: tuple[float, float] | None) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, loc="left")
    if y_range is not None:
        axes.set_ylim(*y_range)
    axes.grid(color="#d8dce2", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False)


def _render(figure: Any) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")
