"""Relative pose from matches: the "pairs with ground truth" text format of YFCC100M and ScanNet.

Format (SuperGlue's assets/yfcc_test_pairs_with_gt.txt and scannet_test_pairs_with_gt.txt): one pair per line,
name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16), row by row; rot is the number of quarter turns counter-clockwise
that set the photo upright before matching; K and T are those of the photo as stored. Blank lines and # lines
are skipped.

Protocol: 5-point estimation inside a robust estimator (OpenCV USAC_MAGSAC or PoseLib) on all matches of the
pair; rotation error is the angle of R_est^T R_true; translation error the angle between directions, folded to
0..90 because the sign of t is not observable from an essential matrix; the pose error is the larger one,
infinite without an estimate. AUC at 5 / 10 / 20 degrees as in SuperGlue; mAP as in the YFCC100M tables
(OANet): mAP@10 is the mean of the accuracies at 5 and 10; accuracy at 10 degrees for rotation and translation
apart and the subsets easy [0, 15], medium (15, 30], hard (30, 60] degrees of true rotation as in CAPS (Wang
et al., ECCV 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.metrics.measures import accuracy_below, yfcc_map
from coam.evaluation.metrics.tables import Metric, Row, Summary, auc_of, mean_of, median_of, recall_curves
from coam.evaluation.pairs import Array, EvaluationPair, listed_lines, photo_below
from coam.evaluation.runner import PER_PAIR, Benchmark, Option
from coam.geometry.epipolar import fundamental_from_pose, symmetric_epipolar_distance
from coam.geometry.pose import rotation_angle, rotation_error, translation_error
from coam.geometry.robust import Estimator, RansacOptions, relative_pose
from coam.types import Matches

WHERE = (
    "posed-pairs: --root is the folder of the photos; the list is ROOT/pairs_with_gt.txt or --pairs FILE, "
    "one line per pair: name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16)"
)


def angle_subset(degrees: float) -> str:
    """CAPS's name for a true rotation between two cameras."""
    for name, limit in (("easy", 15.0), ("medium", 30.0), ("hard", 60.0)):
        if degrees <= limit:
            return name
    return "beyond 60"


def load_posed_pairs(root: Path, pairs: Path | None = None) -> list[EvaluationPair]:
    """Pairs of a "pairs with ground truth" file; raises DataError that names the line or photo at fault."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. {WHERE}")
    listing = pairs or _find_listing(root)
    found: dict[str, EvaluationPair] = {}
    for where, words in listed_lines(listing, WHERE):
        pair = _parse_line(root, words, where)
        if pair.name in found:
            raise DataError(f"{where}: the pair {pair.name} is listed twice; remove one")
        found[pair.name] = pair
    if not found:
        raise DataError(f"{listing.name} lists no pair. {WHERE}")
    return list(found.values())


def _find_listing(root: Path) -> Path:
    found = sorted(root.glob("*pairs_with_gt.txt"))
    if not found:
        raise DataError(f"no *pairs_with_gt.txt in {root}. {WHERE}")
    if len(found) > 1:
        raise DataError(
            f"several pair lists in {root} ({', '.join(f.name for f in found)}); choose with --pairs"
        )
    return found[0]


def _parse_line(root: Path, words: list[str], where: str) -> EvaluationPair:
    if len(words) != 38:
        raise DataError(
            f"{where} has {len(words)} entries, wanted 38: name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16)"
        )
    try:
        turns0, turns1 = (int(float(word)) for word in words[2:4])
        numbers = np.asarray(words[4:], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{where} holds something that is not a number: {error}") from error
    intrinsics, pose = numbers[:18].reshape(2, 3, 3), numbers[18:].reshape(4, 4)
    return replace(posed_pair(root, words[:2], intrinsics, pose, where), turns0=turns0 % 4, turns1=turns1 % 4)


def posed_pair(
    root: Path, names: Sequence[str], intrinsics: Sequence[Array] | Array, pose: Array, where: str
) -> EvaluationPair:
    """A checked pair of two photos with their camera matrices; `where` names the source in errors."""
    if not np.isfinite(pose).all() or not np.allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-2):
        raise DataError(
            f"{where}: T_0to1 does not hold a rotation; check the order of its 16 numbers (row by row)"
        )
    for label, matrix in zip(("K0", "K1"), intrinsics, strict=True):
        if not np.isfinite(matrix).all() or matrix[0, 0] <= 0 or matrix[1, 1] <= 0:
            raise DataError(f"{where}: {label} is not a camera matrix with positive focal lengths")
    image0, image1 = (photo_below(root, name, where) for name in names)
    sequence = str(Path(names[0]).parent)
    return EvaluationPair(
        name=" ".join(names),
        image0=image0,
        image1=image1,
        sequence=sequence if sequence != "." else names[0],
        subsets=(angle_subset(rotation_angle(pose[:3, :3])),),
        intrinsics0=intrinsics[0],
        intrinsics1=intrinsics[1],
        pose=pose,
    )


def _known(pair: EvaluationPair) -> tuple[Array, Array, Array]:
    if pair.intrinsics0 is None or pair.intrinsics1 is None or pair.pose is None:
        raise DataError(f"{pair.name} has no known cameras")
    return pair.intrinsics0, pair.intrinsics1, pair.pose


def score_pose(
    pair: EvaluationPair, matches: Matches, *, estimator: Estimator = "opencv", threshold: float = 1.0
) -> Row:
    """Figures of one pair: rotation, translation and pose error in degrees, epipolar precision, counts."""
    intrinsics0, intrinsics1, pose = _known(pair)
    found = relative_pose(
        matches.points0, matches.points1, intrinsics0, intrinsics1,
        RansacOptions(threshold=threshold, estimator=estimator),
    )  # fmt: skip
    rotation = translation = float("inf")
    if found is not None:
        rotation = rotation_error(found.rotation, pose[:3, :3])
        translation = translation_error(found.translation, pose[:3, 3])
    errors = match_errors_pose(pair, matches)
    return {
        "rotation_error": rotation,
        "translation_error": translation,
        "pose_error": max(rotation, translation),
        "precision@1": accuracy_below(errors, 1.0) if len(errors) else 0.0,
        "precision@3": accuracy_below(errors, 3.0) if len(errors) else 0.0,
        "matches": float(len(matches)),
        "inliers": float(found.inliers.sum()) if found is not None else 0.0,
    }


def match_errors_pose(pair: EvaluationPair, matches: Matches) -> Array:
    """Symmetric epipolar distance in pixels (N,) of each match under the true pose."""
    intrinsics0, intrinsics1, pose = _known(pair)
    fundamental = fundamental_from_pose(intrinsics0, intrinsics1, pose)
    return symmetric_epipolar_distance(matches.points0, matches.points1, fundamental)


def _map(limit: int) -> Summary:
    return lambda table: yfcc_map(table["pose_error"], limit)


def _accuracy(key: str, limit: float) -> Summary:
    return lambda table: accuracy_below(table[key], limit)


POSED_PAIRS = Benchmark(
    name="posed-pairs",
    load=load_posed_pairs,
    options=(Option("pairs", Path | None, None, "Pair list; default ROOT/*pairs_with_gt.txt."),),
    shared=(*PER_PAIR, "keypoints"),
    score=score_pose,
    settings={"estimator": "opencv", "threshold": 1.0},
    metrics=(
        *(Metric(f"AUC@{t}", auc_of("pose_error", t), "share", headline=True) for t in (5, 10, 20)),
        *(Metric(f"mAP@{t}", _map(t), "share", headline=True) for t in (5, 10, 20)),
        Metric("rotation acc@10", _accuracy("rotation_error", 10.0), "share", headline=True),
        Metric("translation acc@10", _accuracy("translation_error", 10.0), "share", headline=True),
        Metric("median rotation error", median_of("rotation_error"), "degrees", higher_is_better=False),
        Metric("median translation error", median_of("translation_error"), "degrees", higher_is_better=False),
        Metric("epipolar precision@1", mean_of("precision@1"), "share"),
        Metric("epipolar precision@3", mean_of("precision@3"), "share"),
        Metric("matches", mean_of("matches"), "count", headline=True),
        Metric("inliers", mean_of("inliers"), "count"),
    ),
    rank_by="pose_error",
    rank_higher_is_better=False,
    match_errors=match_errors_pose,
    correct_below=3.0,
    curves=recall_curves("pose_error", 20.0),
    curve_axes=("pose error in degrees", "share of pairs"),
)
