"""EVD, extreme viewpoints: how far a homography from the matches is off over what both photos show.

Layout (EVD of Mishkin et al., "MODS", CVIU 2015; cmp.felk.cvut.cz/wbs): ROOT/1/NAME.png, ROOT/2/NAME.png and
ROOT/h/NAME.txt, nine numbers mapping pixels of photo 1 to pixels of photo 2 (15 pairs). Endings of the photos
may also be .jpg or .ppm.

Protocol (as the RANSAC tutorial of CVPR 2020 measures homographies): USAC_MAGSAC at 3 px, at most 100,000
draws; the error of a pair is the mean distance in photo 2 between the estimated and the true place of the
pixels of photo 1 that the truth sends into photo 2 (a grid of them); infinite without an estimate. Figures:
share of pairs below 1, 3, 5, 10, 20 px; mAA@10, the mean of the shares at 1, 2 .. 10 px; and MMA of the
matches themselves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.benchmarks.hpatches import (
    find_image,
    known_homography,
    match_errors_hpatches,
    read_homography,
)
from coam.evaluation.benchmarks.invariance import corresponding_positions
from coam.evaluation.metrics.measures import matching_accuracy
from coam.evaluation.metrics.tables import Metric, Row, mean_of
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.runner import Benchmark
from coam.geometry.homography import transfer_errors
from coam.geometry.robust import Estimator, RansacOptions, estimate_homography
from coam.types import Matches, Size

THRESHOLDS = tuple(float(t) for t in range(1, 21))
SHOWN = (1, 3, 5, 10, 20)
DRAWS = 100_000
COLUMNS = 200  # of the grid over photo 1: the visible part can be small
WHERE = "EVD: download EVD.zip (cmp.felk.cvut.cz/wbs); --root holds 1/NAME.png, 2/NAME.png, h/NAME.txt"


def load_evd(root: Path) -> list[EvaluationPair]:
    """The pairs of a folder in EVD's layout."""
    if not (root / "h").is_dir():
        raise DataError(f"{root} has no folder h. {WHERE}")
    listings = sorted((root / "h").glob("*.txt"))
    if not listings:
        raise DataError(f"{root}/h holds no homography. {WHERE}")
    return [
        EvaluationPair(
            path.stem,
            find_image(root / "1", path.stem, "1"),
            find_image(root / "2", path.stem, "2"),
            sequence=path.stem,
            homography=read_homography(path),
        )
        for path in listings
    ]


def visible_error(estimated: Array | None, true: Array, size0: Size, size1: Size) -> float:
    """Mean distance in pixels of photo 1 over what the truth sends into it; inf without an estimate."""
    if estimated is None:
        return float("inf")
    places, wanted = corresponding_positions(true, size0, size1, COLUMNS)
    if not len(places):
        raise DataError("the homography sends nothing of the first photo into the second; unpack it again")
    return float(transfer_errors(places, wanted, estimated).mean())


def score_evd(
    pair: EvaluationPair, matches: Matches, *, estimator: Estimator = "opencv", threshold: float = 3.0
) -> Row:
    """Figures of one pair: the homography's error over the visible part, shares of right matches."""
    true = known_homography(pair)
    options = RansacOptions(threshold=threshold, estimator=estimator, max_iterations=DRAWS)
    found = estimate_homography(matches.points0, matches.points1, options)
    error = visible_error(None if found is None else found.matrix, true, matches.size0, matches.size1)
    below = [float(error <= t) for t in THRESHOLDS]
    row: Row = {f"within@{t:g}": share for t, share in zip(THRESHOLDS, below, strict=True)}
    off = transfer_errors(matches.points0, matches.points1, true)
    row |= {f"mma@{t}": float(share) for t, share in zip(SHOWN, matching_accuracy(off, SHOWN), strict=True)}
    return row | {"mAA@10": float(np.mean(below[:10])), "error": error, "matches": float(len(matches))}


EVD = Benchmark(
    name="evd",
    load=load_evd,
    score=score_evd,
    settings={"estimator": "opencv", "threshold": 3.0},
    metrics=(
        Metric("mAA@10", mean_of("mAA@10"), "share", headline=True),
        *(Metric(f"pairs within {t} px", mean_of(f"within@{t}"), "share", headline=True) for t in SHOWN),
        *(Metric(f"MMA@{t}", mean_of(f"mma@{t}"), "share") for t in SHOWN),
        Metric("matches", mean_of("matches"), "count", headline=True),
    ),
    rank_by="error",
    rank_higher_is_better=False,
    match_errors=match_errors_hpatches,
    correct_below=5.0,
)
