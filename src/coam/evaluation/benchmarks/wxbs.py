"""WxBS, wide baselines of every kind: epipolar recall of hand-clicked correspondences.

They change viewpoint, light, season and sensor at once.

Layout (WxBS v1.1, Mishkin et al., BMVC 2015 and wxbs-benchmark): ROOT/CATEGORY/SCENE/ with 01.png (or .jpg),
02.png and corrs.txt, one correspondence x1 y1 x2 y2 per line. One or two levels of folders are accepted; the
category, where there is one, is a subset (WGABS, WGALBS, WGBS, WGLBS, WGSBS, WLABS).

Protocol: a fundamental matrix is estimated from the matcher's own matches (USAC_MAGSAC); recall at t px is
the share of hand correspondences whose symmetric epipolar distance (the larger of the two point-to-line
distances) is at most t; 0 without an estimate. mAA@10 is the mean of the recalls at 1, 2 .. 10 px.
wxbs-benchmark does the same for a given F with thresholds 0 .. 19 px. In pictures a match counts as correct
by the fundamental matrix fitted to the hand points.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.benchmarks.hpatches import find_image
from coam.evaluation.metrics.measures import matching_accuracy
from coam.evaluation.metrics.tables import Metric, Row, mean_curves, mean_of
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.runner import Benchmark
from coam.geometry.epipolar import symmetric_epipolar_distance
from coam.geometry.robust import Estimator, RansacOptions, estimate_fundamental
from coam.types import Matches

THRESHOLDS = tuple(float(t) for t in range(1, 21))
WHERE = (
    "WxBS: download WxBS v1.1 (cmp.felk.cvut.cz/wbs); --root holds CATEGORY/SCENE/01.png, 02.png, corrs.txt"
)


def load_wxbs(root: Path) -> list[EvaluationPair]:
    """Pairs of every folder below `root` that holds corrs.txt."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. {WHERE}")
    listings = sorted([*root.glob("*/corrs.txt"), *root.glob("*/*/corrs.txt")])
    if not listings:
        raise DataError(f"no SCENE/corrs.txt below {root}. {WHERE}")
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
    pair: EvaluationPair, matches: Matches, *, estimator: Estimator = "opencv", threshold: float = 1.0
) -> Row:
    """Figures of one pair: epipolar recall of the hand points at 1 .. 20 px, matches, inliers."""
    if pair.correspondences is None:
        raise DataError(f"{pair.name} has no correspondences")
    found = estimate_fundamental(
        matches.points0, matches.points1, RansacOptions(threshold=threshold, estimator=estimator)
    )
    distances = np.full(len(pair.correspondences), np.inf)
    if found is not None:
        distances = symmetric_epipolar_distance(
            pair.correspondences[:, :2], pair.correspondences[:, 2:], found.matrix
        )
    recall = matching_accuracy(distances, THRESHOLDS)
    row: Row = {f"recall@{t:g}": float(r) for t, r in zip(THRESHOLDS, recall, strict=True)}
    row["mAA@10"] = float(recall[:10].mean())
    row["matches"] = float(len(matches))
    row["inliers"] = float(found.inliers.sum()) if found is not None else 0.0
    return row


def match_errors_wxbs(pair: EvaluationPair, matches: Matches) -> Array:
    """Distance (N,) of each match to the epipolar geometry of the hand points; inf without one."""
    assert pair.correspondences is not None
    points0, points1 = pair.correspondences[:, :2], pair.correspondences[:, 2:]
    truth = estimate_fundamental(points0, points1, RansacOptions(threshold=3.0))
    if truth is None:
        return np.full(len(matches), np.inf)
    return symmetric_epipolar_distance(matches.points0, matches.points1, truth.matrix)


WXBS = Benchmark(
    name="wxbs",
    load=load_wxbs,
    score=score_wxbs,
    settings={"estimator": "opencv", "threshold": 1.0},
    metrics=(
        Metric("mAA@10", mean_of("mAA@10"), "share", headline=True),
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
