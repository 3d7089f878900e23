"""Dense warps against dense truth: how near the places are, and whether the certainty knows.

Data: ROOT/SUBSET/PAIR/ with the photos 0.* and 1.* and truth.npz: `points` (H, W, 2), the true place in photo
1 of every pixel of photo 0, and `state` (H, W) uint8: 0 not known, 1 visible in both, 2 hidden in photo 1 by
something nearer, 3 outside photo 1. `tools/make_warp_benchmark.py` writes it from the bundled samples.

The warp is asked for at photo 0's own size. Figures, means over pairs: of the pixels visible in both, the
share within 1 and 3 px of the truth, of all and of those with a certainty above 0.5; the share of hidden and
of outside pixels below 0.5. Reliability: over all pixels whose state is known, in ten bins of certainty, the
share that is right (visible and within 3 px); the calibration error is the mean gap, weighted by numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.evaluation.metrics.tables import Curves, Metric, Row, Table, mean_of
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.runner import Benchmark, require_dense
from coam.images.folder import list_photos
from coam.store.archives import read_npz
from coam.types import FloatArray

VISIBLE, HIDDEN, OUTSIDE = 1, 2, 3
THRESHOLDS = (1, 3)  # pixels
RIGHT = 3.0  # pixels: what certainty is a probability of
CERTAIN = 0.5
BINS = 10
TRUTH = "truth.npz"


def load_warps(root: Path) -> list[EvaluationPair]:
    """The pairs of a folder, as described above."""
    pairs = []
    for truth in sorted(root.glob(f"*/*/{TRUTH}")):
        folder = truth.parent
        photos = {photo.stem: photo for photo in list_photos(folder)}
        if not {"0", "1"} <= set(photos):
            raise DataError(f"{folder} lacks the photos 0.* and 1.* beside {TRUTH}")
        subset = folder.parent.name
        name = f"{subset}/{folder.name}"
        pairs.append(EvaluationPair(name, photos["0"], photos["1"], name, (subset,)))
    if not pairs:
        raise DataError(f"{root} holds no SUBSET/PAIR/{TRUTH}; see tools/make_warp_benchmark.py")
    return pairs


def measure_warps(matcher: Any, pairs: Sequence[EvaluationPair]) -> Iterator[Row]:
    """Rows of the pairs; `matcher` is one of ours (it has `warp`)."""
    require_dense(matcher, "warp", "warp")
    for pair in pairs:
        arrays = read_npz(pair.image0.parent / TRUTH, ("points", "state"))
        points, state = arrays["points"], arrays["state"]
        found = matcher.warp(pair.image0, pair.image1, size=max(state.shape)).forward
        if found.certainty.shape != state.shape or points.shape != (*state.shape, 2):
            raise DataError(f"{pair.name}: {TRUTH} and photo 0 differ in size")
        yield warp_row(found.points, found.certainty, points, state)


def warp_row(
    points: FloatArray,
    certainty: FloatArray,
    truth: npt.NDArray[np.floating],
    state: npt.NDArray[np.integer],
) -> Row:
    """Figures of places (H, W, 2) and certainties (H, W) against the truth (H, W, 2) and its state (H, W)."""
    error = np.linalg.norm(points - truth, axis=2)
    visible, sure = state == VISIBLE, certainty > CERTAIN
    row: Row = {"certain": _share(sure[visible])}
    for threshold in THRESHOLDS:
        row[f"all@{threshold}"] = _share(error[visible] < threshold)
        row[f"certain@{threshold}"] = _share(error[visible & sure] < threshold)
    row["hidden"] = _share(~sure[state == HIDDEN])
    row["outside"] = _share(~sure[state == OUTSIDE])
    known = np.isin(state, (VISIBLE, HIDDEN, OUTSIDE))
    right = (visible & (error < RIGHT))[known]
    probability = certainty[known].astype(np.float64)
    bins = np.clip((probability * BINS).astype(int), 0, BINS - 1)
    for name, weight in (("count", None), ("promised", probability), ("right", right.astype(float))):
        for index, value in enumerate(np.bincount(bins, weight, BINS)):
            row[f"{name}{index}"] = float(value)
    return row


def _share(mask: npt.NDArray[np.bool_]) -> float:
    return float(mask.mean()) if mask.size else float("nan")


def reliability(table: Table) -> list[tuple[float, float, float]]:
    """(mean certainty, share that is right, share of all pixels) of each filled bin, lowest first."""
    columns = [
        np.array([table[f"{name}{index}"].sum() for index in range(BINS)])
        for name in ("promised", "right", "count")
    ]
    promised, right, count = columns
    filled = count > 0
    total = max(1.0, float(count.sum()))
    parts = (promised[filled] / count[filled], right[filled] / count[filled], count[filled] / total)
    return [(float(p), float(r), float(c)) for p, r, c in zip(*parts, strict=True)]


def calibration_error(table: Table) -> float:
    """Mean gap between certainty and what is right, weighted by numbers."""
    return sum(abs(promised - right) * share for promised, right, share in reliability(table))


def reliability_curve(pairs: Sequence[EvaluationPair], rows: Sequence[Row]) -> Curves:
    """The reliability of all pairs together."""
    return {"reliability": [(promised, right) for promised, right, _ in reliability(Table.of(rows))]}


WARP = Benchmark(
    name="warp",
    load=load_warps,
    measure=measure_warps,
    shared=("limit",),
    metrics=(
        *(Metric(f"within {t} px", mean_of(f"all@{t}"), headline=True) for t in THRESHOLDS),
        Metric("certain", mean_of("certain")),
        *(Metric(f"certain within {t} px", mean_of(f"certain@{t}"), headline=True) for t in THRESHOLDS),
        Metric("hidden below .5", mean_of("hidden"), headline=True),
        Metric("outside below .5", mean_of("outside")),
        Metric("calibration error", calibration_error, higher_is_better=False),
    ),
    rank_by="certain@3",
    curves=reliability_curve,
    curve_axes=("certainty", f"share visible and within {RIGHT:g} px"),
)
