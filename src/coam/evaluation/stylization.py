"""Stylization: mean L1 distance to the true colours on the common region (the paper's section 4.3).

Given a view and a style photo of the same scene, the wanted picture has the pose of the view and the colours
of the style photo. Where true correspondences are known, so are the wanted colours: those of the style photo
at the corresponding place. Layout here: a folder in HPatches layout; image 1 is the view, image k the style
photo, the homography the correspondence (the paper uses 400 MegaDepth pairs and their depth maps, which are
not public in this form). The error is the mean absolute difference over the three channels, colours in [0,
1], at a regular grid of positions of the view that fall inside the style photo.

Baselines: do nothing (the view itself); global colour transfer (Reinhard et al. 2001: mean and spread of each
channel taken from the style photo, in Lab); warp only (the paper's sampled image: for EVERY position the
colour of its best match). `--stylizer package.module:function` adds a method: function(view path, style path)
-> picture of the view's size.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.evaluation.invariance import corresponding_positions
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.predictions import Progress
from coam.evaluation.runner import PairBenchmark
from coam.evaluation.summary import Figure, Row, mean_of

Picture = npt.NDArray[np.uint8]  # (H, W, 3)
Stylizer = Callable[[Path, Path], Any]
COLUMNS = 96  # positions across the view


def sample_colours(picture: Picture, points: Array) -> Array:
    """Colours (N, 3) in [0, 1] of a picture (H, W, 3) at pixels (N, 2), bilinear, clamped to the picture."""
    height, width = picture.shape[:2]
    x = np.clip(points[:, 0], 0, width - 1)
    y = np.clip(points[:, 1], 0, height - 1)
    left, top = np.minimum(x.astype(int), width - 2), np.minimum(y.astype(int), height - 2)
    right_share, low_share = (x - left)[:, None], (y - top)[:, None]
    values = picture.astype(np.float64) / 255
    upper = values[top, left] * (1 - right_share) + values[top, left + 1] * right_share
    lower = values[top + 1, left] * (1 - right_share) + values[top + 1, left + 1] * right_share
    return np.asarray(upper * (1 - low_share) + lower * low_share)


def mean_l1(colours: npt.ArrayLike, wanted: npt.ArrayLike) -> float:
    """Mean absolute difference over positions and channels, (N, 3) each; nan where nothing is common."""
    difference = np.abs(np.asarray(colours, dtype=np.float64) - np.asarray(wanted, dtype=np.float64))
    return float(difference.mean()) if difference.size else float("nan")


def transfer_colours(view: Picture, style: Picture) -> Picture:
    """The view with mean and spread of each Lab channel taken from the style photo."""
    import cv2

    source, target = (cv2.cvtColor(p, cv2.COLOR_RGB2LAB).astype(np.float64) for p in (view, style))
    spread = target.std(axis=(0, 1)) / np.maximum(source.std(axis=(0, 1)), 1e-6)
    moved = (source - source.mean(axis=(0, 1))) * spread + target.mean(axis=(0, 1))
    lab = np.clip(np.rint(moved), 0, 255).astype(np.uint8)
    return np.asarray(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB), dtype=np.uint8)


def score_stylization(pair: EvaluationPair, matcher: Any, stylizer: Stylizer | None = None) -> Row:
    """L1 of every method on one pair. `matcher` is one of ours: its match(..., keypoints0=) answers every
    position.
    """
    from coam.images import load_image

    if pair.homography is None:
        raise DataError(f"{pair.name} has no homography")
    view, style = load_image(pair.image0), load_image(pair.image1)
    places, true_places = corresponding_positions(pair.homography, view.size, style.size, COLUMNS)
    wanted = sample_colours(style.rgb, true_places)
    warped = matcher.match(view, style, keypoints0=places.astype(np.float32)).points1.astype(np.float64)
    row: Row = {
        "positions": float(len(places)),
        "do_nothing": mean_l1(sample_colours(view.rgb, places), wanted),
        "colour_transfer": mean_l1(sample_colours(transfer_colours(view.rgb, style.rgb), places), wanted),
        "warp_only": mean_l1(sample_colours(style.rgb, warped), wanted),
        "stylizer": float("nan"),
    }
    if stylizer is not None:
        made = load_image(stylizer(pair.image0, pair.image1))
        if made.size != view.size:
            raise ConfigError(
                f"the stylizer gave {made.size} pixels, wanted the size of the view, {view.size}"
            )
        row["stylizer"] = mean_l1(sample_colours(made.rgb, places), wanted)
    return row


def measure_stylization(
    matcher: Any,
    pairs: Sequence[EvaluationPair],
    stylizer: Stylizer | None = None,
    progress: Progress = lambda done: None,
) -> list[Row]:
    """Rows of the pairs."""
    if not hasattr(matcher, "match"):
        raise ConfigError(
            "stylization asks for the match of every position: give one of our models as --matcher"
        )
    rows = []
    for pair in pairs:
        rows.append(score_stylization(pair, matcher, stylizer))
        progress(1)
    return rows


def find_stylizer(name: str) -> Stylizer:
    """The function behind package.module:function."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--stylizer {name}: {error}; wanted package.module:function") from error
    if not callable(found):
        raise ConfigError(f"--stylizer {name} is not a function (view path, style path) -> picture")
    return found  # type: ignore[no-any-return]


def _no_matches(*_: Any, **__: Any) -> Row:
    raise ConfigError("stylization is measured on pictures, not on cached matches; use measure_stylization")


STYLIZATION = PairBenchmark(
    name="stylization",
    protocol=__doc__ or "",
    score=_no_matches,
    figures=tuple(
        Figure(f"L1 {key.replace('_', ' ')}", mean_of(key), "value", headline=True, higher_is_better=False)
        for key in ("do_nothing", "colour_transfer", "warp_only", "stylizer")
    ),
    rank_by="warp_only",
    rank_higher_is_better=False,
)
