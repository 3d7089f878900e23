"""WxBS, wide baselines of every kind: epipolar recall of hand-clicked correspondences.

They change viewpoint, light, season and sensor at once.

Layout (WxBS v1.1, Mishkin et al., BMVC 2015 and wxbs-benchmark): ROOT/CATEGORY/SCENE/ with 01.png (or .jpg),
02.png and corrs.txt, one correspondence x1 y1 x2 y2 per line. One or two levels of folders are accepted; the
category, where there is one, is a subset (WGABS, WGALBS, WGBS, WGLBS, WGSBS, WLABS).

Protocol F (wxbs-benchmark; RoMa, LoMa): a fundamental matrix is estimated from the matcher's own matches
(USAC_MAGSAC); recall at t px is the share of hand correspondences whose symmetric epipolar distance (the
larger of the two point-to-line distances) is at most t; 0 without an estimate. mAA@10 is the mean of the
recalls at 1, 2 .. 10 px, with RANSAC at 1 px. `--protocol published` is what papers report (LoMa, RoMa):
RANSAC at 0.25 px, confidence 0.999, at most 100,000 draws, and the mean of the recalls at 0, 1 .. 10 px,
`recall 0..10`; leave out the two validation scenes kyiv_dolltheater2 and petrzin with --test-only.

Protocol PCK (`coam eval wxbs-warp`, for models that have a dense warp): the hand points of both photos are
sent through the warp (one look); PCK at t px is the share that arrives at most t px from its hand point, the
mean of both directions; `PCK 0..10` is the mean over 0, 1 .. 10 px.

In pictures a match counts as correct by the fundamental matrix fitted to the hand points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.hpatches import find_image
from coam.evaluation.metrics.measures import matching_accuracy
from coam.evaluation.metrics.tables import Metric, Row, mean_curves, mean_of
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.runner import Benchmark, Option, require_dense
from coam.geometry.epipolar import symmetric_epipolar_distance
from coam.geometry.robust import Estimator, RansacOptions, estimate_fundamental
from coam.types import Matches

THRESHOLDS = tuple(float(t) for t in range(21))
VALIDATION = ("kyiv_dolltheater2", "petrzin")  # scenes of wxbs-benchmark's validation part
PROTOCOLS = {
    "usual": RansacOptions(threshold=1.0),
    "published": RansacOptions(threshold=0.25, confidence=0.999, max_iterations=100_000),
}
WHERE = (
    "WxBS: download WxBS v1.1 (cmp.felk.cvut.cz/wbs); --root holds CATEGORY/SCENE/01.png, 02.png, corrs.txt"
)


def load_wxbs(root: Path, *, test_only: bool = False) -> list[EvaluationPair]:
    """Pairs of every folder below `root` with corrs.txt; `test_only` leaves the validation scenes out."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. {WHERE}")
    listings = sorted([*root.glob("*/corrs.txt"), *root.glob("*/*/corrs.txt")])
    if not listings:
        raise DataError(f"no SCENE/corrs.txt below {root}. {WHERE}")
    if test_only:
        listings = [listing for listing in listings if listing.parent.name not in VALIDATION]
    return [_load_scene(root, listing) for listing in listings]


def _load_scene(root: Path, listing: Path) -> EvaluationPair:
    folder = listing.parent
    name = folder.relative_to(root).as_posix()
    image0, image1 = (find_image(folder, stem, name) for stem in ("01", "02"))
    subsets = (name.split("/")[0],) if "/" in name else ()
    points = _read_correspondences(listing, name)
    return EvaluationPair(name, image0, image1, sequence=name, subsets=subsets, correspondences=points)


def _read_correspondences(path: Path, name: str) -> Array:
    try:
        rows = [line.replace(",", " ").split() for line in path.read_text().splitlines() if line.strip()]
        table = np.asarray([row[:4] for row in rows], dtype=np.float64).reshape(-1, 4)
    except (OSError, ValueError) as error:
        raise DataError(f"{name}/corrs.txt is damaged; every line is x1 y1 x2 y2") from error
    if len(table) == 0 or not np.isfinite(table).all():
        raise DataError(f"{name}/corrs.txt holds no usable correspondence; unpack it again")
    return table


def score_wxbs(
    pair: EvaluationPair,
    matches: Matches,
    *,
    estimator: Estimator = "opencv",
    threshold: float | None = None,
    protocol: str = "usual",
) -> Row:
    """Figures of one pair: epipolar recall of the hand points at 0 .. 20 px, matches, inliers.

    threshold: pixels of RANSAC; None: the protocol's.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"--protocol {protocol}: choose {' or '.join(PROTOCOLS)}")
    options = replace(PROTOCOLS[protocol], estimator=estimator)
    options = options if threshold is None else replace(options, threshold=threshold)
    hand0, hand1 = hand_points(pair)
    found = estimate_fundamental(matches.points0, matches.points1, options)
    distances = np.full(len(hand0), np.inf)
    if found is not None:
        distances = symmetric_epipolar_distance(hand0, hand1, found.matrix)
    recall = matching_accuracy(distances, THRESHOLDS)
    row: Row = {f"recall@{t:g}": float(r) for t, r in zip(THRESHOLDS, recall, strict=True)}
    row["mAA@10"] = float(recall[1:11].mean())
    row["recall 0..10"] = float(recall[:11].mean())
    row["matches"] = float(len(matches))
    row["inliers"] = float(found.inliers.sum()) if found is not None else 0.0
    return row


def hand_points(pair: EvaluationPair) -> tuple[Array, Array]:
    """The hand-clicked points (N, 2) of both photos."""
    if pair.correspondences is None:
        raise DataError(f"{pair.name} has no correspondences")
    return pair.correspondences[:, :2], pair.correspondences[:, 2:]


def measure_wxbs_warp(matcher: Any, pairs: Sequence[EvaluationPair]) -> Iterator[Row]:
    """Rows of the pairs; `matcher` is one of ours (it has `warp`)."""
    require_dense(matcher, "warp", "wxbs-warp")
    for pair in pairs:
        hand0, hand1 = hand_points(pair)
        warp = matcher.warp(pair.image0, pair.image1)
        there, back = warp.forward.at(hand0)[0], warp.backward.at(hand1)[0]
        yield pck_row(np.asarray(there, np.float64) - hand1, np.asarray(back, np.float64) - hand0)


def pck_row(off_there: Array, off_back: Array) -> Row:
    """PCK of points that arrive off by (N, 2) pixels in photo 1, and (N, 2) in photo 0 on the way back."""
    both = [matching_accuracy(np.linalg.norm(off, axis=1), THRESHOLDS) for off in (off_there, off_back)]
    share = np.mean(both, axis=0)
    row: Row = {f"pck@{t:g}": float(s) for t, s in zip(THRESHOLDS, share, strict=True)}
    return row | {"PCK 0..10": float(share[:11].mean()), "points": float(len(off_there))}


def match_errors_wxbs(pair: EvaluationPair, matches: Matches) -> Array:
    """Distance (N,) of each match to the epipolar geometry of the hand points; inf without one."""
    points0, points1 = hand_points(pair)
    truth = estimate_fundamental(points0, points1, RansacOptions(threshold=3.0))
    if truth is None:
        return np.full(len(matches), np.inf)
    return symmetric_epipolar_distance(matches.points0, matches.points1, truth.matrix)


TEST_ONLY = Option("test_only", bool, False, "Leave out the two validation scenes.", ("--test-only",))

WXBS = Benchmark(
    name="wxbs",
    load=load_wxbs,
    options=(TEST_ONLY,),
    score=score_wxbs,
    settings={
        "estimator": "opencv",
        "threshold": None,
        "protocol": Option("protocol", str, "usual", "usual (RANSAC at 1 px) or published (0.25 px)."),
    },
    metrics=(
        Metric("mAA@10", mean_of("mAA@10"), "share", headline=True),
        Metric("recall 0..10", mean_of("recall 0..10"), "share", headline=True),
        *(Metric(f"recall@{t}", mean_of(f"recall@{t}"), "share", headline=True) for t in (1, 3, 5, 10)),
        Metric("matches", mean_of("matches"), "count", headline=True),
        Metric("inliers", mean_of("inliers"), "count"),
    ),
    rank_by="mAA@10",
    match_errors=match_errors_wxbs,
    correct_below=5.0,
    curves=mean_curves("recall", THRESHOLDS),
    curve_axes=("threshold in pixels", "epipolar recall"),
)

WXBS_WARP = Benchmark(
    name="wxbs-warp",
    load=load_wxbs,
    options=(TEST_ONLY,),
    measure=measure_wxbs_warp,
    shared=("limit",),
    metrics=(
        Metric("PCK 0..10", mean_of("PCK 0..10"), "share", headline=True),
        *(Metric(f"PCK@{t}", mean_of(f"pck@{t}"), "share", headline=True) for t in (1, 3, 5, 10)),
        Metric("points", mean_of("points"), "count"),
    ),
    rank_by="PCK 0..10",
    curves=mean_curves("pck", THRESHOLDS),
    curve_axes=("threshold in pixels", "share of hand points"),
)
