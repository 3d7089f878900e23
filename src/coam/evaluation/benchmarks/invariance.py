"""Illumination invariance of descriptors (the paper's section 5.2): L1 difference, mean and std.

Data: a folder in HPatches layout; the i_* (illumination) sequences are used. One image (1, the target) is
kept fixed and matched against images 2 .. 6 (the queries). On a regular grid of positions of the target, the
descriptor there is compared with the query's descriptor at the place the homography says, both unit vectors,
sampled bilinearly and normalised again. The paper does not say whether its L1 is a sum or a mean over
channels: we give the sum ("L1") and, because sums of different lengths do not compare, the mean absolute
difference per channel and the cosine.

"conditioned": each image is described while looking at the other. "alone": each image is paired with itself,
so that its descriptors know nothing of the other one: what the same weights do without conditioning on the
pair. A model that was trained without co-attention is measured by giving it as --matcher, and compared by
`coam eval compare`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.evaluation.benchmarks.hpatches import known_homography, load_hpatches
from coam.evaluation.metrics.tables import Metric, Row, Summary, Table, mean_of
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.runner import Benchmark, require_dense
from coam.geometry.homography import apply_homography
from coam.types import Size


def load_invariance(root: Path) -> list[EvaluationPair]:
    """The illumination pairs of a folder in HPatches layout."""
    pairs = [pair for pair in load_hpatches(root) if "illumination" in pair.subsets]
    if not pairs:
        raise DataError(f"{root} has no i_* sequence; invariance is measured on changes of illumination")
    return pairs


def corresponding_positions(
    homography: npt.ArrayLike, size0: Size, size1: Size, columns: int = 48
) -> tuple[Array, Array]:
    """Grid positions (N, 2) of image 0 and where they lie (N, 2) in image 1, where inside both."""
    rows = max(2, round(columns * size0[1] / size0[0]))
    xs = (np.arange(columns) + 0.5) * size0[0] / columns - 0.5
    ys = (np.arange(rows) + 0.5) * size0[1] / rows - 0.5
    grid = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    mapped = apply_homography(homography, grid)
    inside = ((mapped >= 0) & (mapped <= np.asarray(size1) - 1)).all(axis=1)
    return grid[inside], mapped[inside]


def descriptor_differences(first: npt.ArrayLike, second: npt.ArrayLike) -> Row:
    """L1 difference of unit descriptors (N, D), (N, D): mean, mean square, per channel; mean cosine."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(a) == 0:
        return dict.fromkeys(("l1", "l1_squares", "per_channel", "cosine"), float("nan"))
    l1 = np.abs(a - b).sum(axis=1)
    return {
        "l1": float(l1.mean()),
        "l1_squares": float((l1**2).mean()),  # for the std over all positions of all pairs
        "per_channel": float(l1.mean() / a.shape[1]),
        "cosine": float((a * b).sum(axis=1).mean()),
    }


def measure_invariance(matcher: Any, pairs: Sequence[EvaluationPair]) -> Iterator[Row]:
    """Rows of the pairs; `matcher` is one of ours (its `describe` gives dense descriptors)."""
    require_dense(matcher, "describe", "invariance")
    return (_measure_pair(matcher, pair) for pair in pairs)


def _measure_pair(matcher: Any, pair: EvaluationPair) -> Row:
    from coam.images import load_image

    image0, image1 = load_image(pair.image0), load_image(pair.image1)
    points0, points1 = corresponding_positions(known_homography(pair), image0.size, image1.size)
    dense0, dense1 = matcher.describe(image0, image1)
    alone0, alone1 = matcher.describe(image0, image0)[0], matcher.describe(image1, image1)[0]
    row: Row = {}
    for label, first, second in (("conditioned", dense0, dense1), ("alone", alone0, alone1)):
        sampled0 = _descriptors(first, points0, image0.size)
        sampled1 = _descriptors(second, points1, image1.size)
        row |= {f"{label}_{key}": value for key, value in descriptor_differences(sampled0, sampled1).items()}
    return row


def _descriptors(dense: Any, points: Array, size: Size) -> npt.NDArray[np.float32]:
    """Unit descriptors (N, D) at original pixels (N, 2)."""
    import torch

    from coam.geometry.coordinates import resize_points
    from coam.matching.grid import sample_map
    from coam.tensors import as_array

    positions = torch.from_numpy(points).float().to(dense.descriptors.device)
    inside = resize_points(positions, (dense.size[1] / size[0], dense.size[0] / size[1]))
    return as_array(sample_map(dense.descriptors, inside[None], dense.stride, normalise=True)[0])


def standard_deviation(label: str) -> Summary:
    """Std of the L1 difference over all positions of all pairs (pairs weigh alike)."""

    def summary(table: Table) -> float:
        mean = float(np.nanmean(table[f"{label}_l1"]))
        squares = float(np.nanmean(table[f"{label}_l1_squares"]))
        return math.sqrt(max(squares - mean**2, 0.0))

    return summary


INVARIANCE = Benchmark(
    name="invariance",
    load=load_invariance,
    measure=measure_invariance,
    shared=("limit", "preset"),
    metrics=tuple(
        figure
        for label in ("conditioned", "alone")
        for figure in (
            Metric(f"L1 {label}", mean_of(f"{label}_l1"), "value", headline=True, higher_is_better=False),
            Metric(f"std of L1 {label}", standard_deviation(label), "value", higher_is_better=False),
            Metric(f"per channel {label}", mean_of(f"{label}_per_channel"), "value", higher_is_better=False),
            Metric(f"cosine {label}", mean_of(f"{label}_cosine"), "value", headline=True),
        )
    ),
    rank_by="conditioned_l1",
    rank_higher_is_better=False,
)
