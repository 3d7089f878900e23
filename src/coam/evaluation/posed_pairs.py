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

from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.metrics import accuracy_below, error_auc, yfcc_map
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.summary import Figure, Row, Summary, mean_of, median_of
from coam.geometry.epipolar import fundamental_from_pose, symmetric_epipolar_distance
from coam.geometry.pose import rotation_angle, rotation_error, translation_error
from coam.geometry.robust import Estimator, RansacOptions, relative_pose
from coam.types import Matches

WHERE = (
    "posed-pairs: --root is the folder of the photos; the list is ROOT/pairs_with_gt.txt or --pairs FILE, "
    "one line per pair: name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16)"
)
SUBSETS = ("all", "easy", "medium", "hard", "beyond 60")


def angle_subset(degrees: float) -> str:
    """CAPS's name for a true rotation between two cameras."""
    for name, limit in (("easy", 15.0), ("medium", 30.0), ("hard", 60.0)):
        if degrees <= limit:
            return name
    return "beyond 60"


def load_posed_pairs(root: Path, pair_list: Path | None = None) -> list[EvaluationPair]:
    """Pairs of a "pairs with ground truth" file; raises DataError that names the line or photo at fault."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. {WHERE}")
    listing = pair_list or _find_listing(root)
    try:
        lines = listing.read_text().splitlines()
    except OSError as error:
        raise DataError(f"cannot read the pair list {listing.name}. {WHERE}") from error
    pairs: list[EvaluationPair] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            pair = _parse_line(root, line.split(), f"{listing.name} line {number}")
            if pair.name in seen:
                raise DataError(
                    f"{listing.name} line {number}: the pair {pair.name} is listed twice; remove one"
                )
            seen.add(pair.name)
            pairs.append(pair)
    if not pairs:
        raise DataError(f"{listing.name} lists no pair. {WHERE}")
    return pairs


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
        turns = [int(float(word)) for word in words[2:4]]
        numbers = np.asarray(words[4:], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{where} holds something that is not a number: {error}") from error
    intrinsics0, intrinsics1 = numbers[:9].reshape(3, 3), numbers[9:18].reshape(3, 3)
    pose = numbers[18:].reshape(4, 4)
    return posed_pair(
        root, words[0], words[1], intrinsics0, intrinsics1, pose, where, turns=(turns[0], turns[1])
    )


def posed_pair(
    root: Path,
    name0: str,
    name1: str,
    intrinsics0: Array,
    intrinsics1: Array,
    pose: Array,
    where: str,
    *,
    turns: tuple[int, int] = (0, 0),
    subsets: tuple[str, ...] | None = None,
) -> EvaluationPair:
    """A checked pair; `where` names the source of the numbers in errors."""
    if not np.isfinite(pose).all() or not np.allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-2):
        raise DataError(
            f"{where}: T_0to1 does not hold a rotation; check the order of its 16 numbers (row by row)"
        )
    for label, matrix in (("K0", intrinsics0), ("K1", intrinsics1)):
        if not np.isfinite(matrix).all() or matrix[0, 0] <= 0 or matrix[1, 1] <= 0:
            raise DataError(f"{where}: {label} is not a camera matrix with positive focal lengths")
    paths = []
    for name in (name0, name1):
        if not (root / name).is_file():
            raise DataError(f"{where}: the photo {name} is missing below --root; {WHERE}")
        paths.append(root / name)
    sequence = str(Path(name0).parent)
    return EvaluationPair(
        name=f"{name0} {name1}",
        image0=paths[0],
        image1=paths[1],
        sequence=sequence if sequence != "." else name0,
        subsets=subsets or (angle_subset(rotation_angle(pose[:3, :3])),),
        turns0=turns[0] % 4,
        turns1=turns[1] % 4,
        intrinsics0=intrinsics0,
        intrinsics1=intrinsics1,
        pose=pose,
    )


def _known(pair: EvaluationPair) -> tuple[Array, Array, Array]:
    if pair.intrinsics0 is None or pair.intrinsics1 is None or pair.pose is None:
        raise DataError(f"{pair.name} has no known cameras")
    return pair.intrinsics0, pair.intrinsics1, pair.pose


def score_pose(
    pair: EvaluationPair, matches: Matches, *, estimator: Estimator = "opencv", threshold: float = 1.0
) -> Row:
    """Figures of one pair: rotation, translation and pose error in degrees, epipolar precision, matches,
    inliers.
    """
    intrinsics0, intrinsics1, pose = _known(pair)
    found = relative_pose(
        matches.points0, matches.points1, intrinsics0, intrinsics1,
        RansacOptions(threshold=threshold), estimator,
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


def _auc(limit: float) -> Summary:
    return lambda table: float(error_auc(table["pose_error"], [limit])[0])


def _map(limit: int) -> Summary:
    return lambda table: yfcc_map(table["pose_error"], limit)


def _accuracy(key: str, limit: float) -> Summary:
    return lambda table: accuracy_below(table[key], limit)


FIGURES: tuple[Figure, ...] = (
    *(Figure(f"AUC@{t}", _auc(t), "share", headline=True) for t in (5, 10, 20)),
    *(Figure(f"mAP@{t}", _map(t), "share", headline=True) for t in (5, 10, 20)),
    Figure("rotation acc@10", _accuracy("rotation_error", 10.0), "share", headline=True),
    Figure("translation acc@10", _accuracy("translation_error", 10.0), "share", headline=True),
    Figure("median rotation error", median_of("rotation_error"), "degrees", higher_is_better=False),
    Figure("median translation error", median_of("translation_error"), "degrees", higher_is_better=False),
    Figure("epipolar precision@1", mean_of("precision@1"), "share"),
    Figure("epipolar precision@3", mean_of("precision@3"), "share"),
    Figure("matches", mean_of("matches"), "count", headline=True),
    Figure("inliers", mean_of("inliers"), "count"),
)
