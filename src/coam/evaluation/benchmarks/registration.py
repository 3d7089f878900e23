"""Registration: how far a registered image lies from where marked points, or a true transform, say it does.

Data: every folder below ROOT that holds one of
- landmarks.json with the images move.* and fix.*: {"move": [[x, y], ...], "fix": [[x, y], ...]}, zero-based
  pixels, point i of one being point i of the other;
- H_1_2 with the images 1.* and 2.* (HPatches layout): the true homography 1 -> 2. Its landmarks are a grid of
  points of image 1 that image 2 shows;
- truth.npz with the images 0.* and 1.* (`tools/make_warp_benchmark.py`): the true place of every pixel. Its
  landmarks are a grid of the pixels that both show.
The subsets of a pair are the folders around its own below ROOT; where there are none, the name of its folder
up to the last "_" and number.

Protocol: image 0 (move) is registered onto image 1 (fix) from a matcher's matches by `coam.register`'s fit
(--model auto, or homography alone: USAC_MAGSAC at 3 px, the usual figure). The error of a pair is the mean
distance of its landmarks in pixels of image 1, infinite where there is no transform; AUC at 5 and 10 px over
pairs, shares within 5 and 10 px. "median within 5 px" takes the median landmark of each pair, which one
misplaced mark does not move. "sure but wrong": of all pairs, those that would not be refused (confidence 0.8)
with an error above 5 px and 0.5 % of the long side, and, of marks set by hand, above twice what a homography
fitted to the marks themselves misses them by; such marks do not tell. "marks within 5 px": pairs whose marks
that homography misses by less than 5 px; where it does not, marks are misplaced or the scene is not flat, and
no method is to blame.
Methods on intensities hand over points of what they found.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.benchmarks.hpatches import find_image, read_homography
from coam.evaluation.metrics.tables import Metric, Row, auc_of, mean_of, median_of, recall_curves
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.runner import Benchmark, Option
from coam.geometry.coordinates import point_grid
from coam.geometry.homography import apply_homography, fit_homography, transfer_errors
from coam.images.folder import list_photos
from coam.images.limits import opened_picture
from coam.registration.fitting import FitOptions, fit_transform
from coam.registration.quality import SURE, judge, right_within
from coam.store.archives import read_npz
from coam.store.documents import read_json
from coam.types import Matches, Size

LANDMARKS, HOMOGRAPHY, DENSE = "landmarks.json", "H_1_2", "truth.npz"
MARKED = "move"  # the moving image's name where landmarks were set by hand
GRID = 12  # points a side where the truth is known everywhere
WHERE = "wanted folders with landmarks.json (move.*, fix.*), H_1_2 (1.*, 2.*) or truth.npz (0.*, 1.*)"


def load_registration(root: Path) -> list[EvaluationPair]:
    """The pairs of a folder, as described above."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; {WHERE}")
    makers = {LANDMARKS: _landmark_pair, HOMOGRAPHY: _homography_pair, DENSE: _dense_pair}
    found = [(path, make) for name, make in makers.items() for path in root.rglob(name)]
    pairs = [make(root, path) for path, make in sorted(found, key=lambda item: item[0])]
    if not pairs:
        raise DataError(f"{root} holds no pair; {WHERE}")
    return pairs


def _pair(root: Path, folder: Path, images: tuple[Path, Path], landmarks: Array) -> EvaluationPair:
    name = folder.relative_to(root).as_posix() if folder != root else folder.name
    *around, last = name.split("/")
    subsets = tuple(around) or (re.sub(r"[_-]?\d+$", "", last.removeprefix("v_")) or root.name,)
    if len(landmarks) < 4 or not np.isfinite(landmarks).all():
        raise DataError(f"{name}: has fewer than four usable landmarks; mend or remove it")
    return EvaluationPair(name, *images, sequence=name, subsets=subsets, correspondences=landmarks)


def _landmark_pair(root: Path, path: Path) -> EvaluationPair:
    folder = path.parent
    marks = read_json(path, {"move": [[float]], "fix": [[float]]}, "see coam eval registration")
    try:
        columns = [np.asarray(marks[side], np.float64).reshape(-1, 2) for side in ("move", "fix")]
        landmarks = np.hstack(columns)
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: is damaged; it needs as many points [x, y] in move as in fix") from error
    images = find_image(folder, "move", folder.name), find_image(folder, "fix", folder.name)
    return _pair(root, folder, images, landmarks)


def _homography_pair(root: Path, path: Path) -> EvaluationPair:
    folder = path.parent
    image0, image1 = (find_image(folder, stem, folder.name) for stem in ("1", "2"))
    (width, height), other = _size(image0), _size(image1)
    points = point_grid((width, height), GRID)
    moved = apply_homography(read_homography(path), points)
    inside = ((moved >= 0) & (moved <= np.asarray(other) - 1)).all(axis=1)
    return _pair(root, folder, (image0, image1), np.hstack([points, moved])[inside])


def _dense_pair(root: Path, path: Path) -> EvaluationPair:
    folder = path.parent
    photos = {photo.stem: photo for photo in list_photos(folder)}
    if not {"0", "1"} <= set(photos):
        raise DataError(f"{folder} lacks the photos 0.* and 1.* beside {DENSE}")
    truth = read_npz(path, ("points", "state"))
    state, places = truth["state"], truth["points"]
    if places.shape != (*state.shape, 2):
        raise DataError(f"{path}: is damaged; write it again with tools/make_warp_benchmark.py")
    points = point_grid((state.shape[1], state.shape[0]), GRID)
    x, y = np.rint(points).astype(int).T
    seen = state[y, x] == 1
    landmarks = np.column_stack([x, y, places[y, x]]).astype(np.float64)[seen]
    return _pair(root, folder, (photos["0"], photos["1"]), landmarks)


def _size(path: Path) -> Size:
    with opened_picture(path) as picture:
        width, height = picture.size
    return int(width), int(height)


def score_registration(pair: EvaluationPair, matches: Matches, *, model: str = "auto") -> Row:
    """Figures of one pair: landmark errors, confidence, whether it was sure and wrong, seconds."""
    assert pair.correspondences is not None
    marks0, marks1 = pair.correspondences[:, :2], pair.correspondences[:, 2:]
    fit = fit_transform(matches.points0, matches.points1, matches.size1, FitOptions(model=model))
    mean, median, confidence, count = math.inf, math.inf, 0.0, 0.0
    if fit is not None:
        error = np.linalg.norm(fit.transform.points(marks0) - marks1, axis=1)
        mean, median = float(error.mean()), float(np.median(error))
        both = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
        quality = judge(fit, *both, (matches.size0, matches.size1), matches.overlap)
        confidence, count = quality.confidence, float(quality.inliers)
    ideal = fit_homography(marks0, marks1)
    own = math.inf if ideal is None else float(transfer_errors(marks0, marks1, ideal).mean())
    slack = 2 * own if pair.image0.stem == MARKED else 0.0
    wrong = mean > max(right_within(matches.size1), slack)
    return {
        "error": mean,
        "median_error": median,
        "within5": float(mean <= 5),
        "marks_within5": float(own <= 5),
        "within10": float(mean <= 10),
        "median_within5": float(median <= 5),
        "confidence": confidence,
        "accepted": float(confidence >= SURE),
        "sure_but_wrong": float(wrong and confidence >= SURE),
        "inliers": count,
        "seconds": float(matches.meta.get("seconds", math.nan)),
    }


REGISTRATION = Benchmark(
    name="registration",
    load=load_registration,
    score=score_registration,
    settings={"model": Option("model", str, "auto", "auto, or a transform: homography, affine, spline, ...")},
    metrics=(
        Metric("AUC@5", auc_of("error", 5.0), headline=True),
        Metric("AUC@10", auc_of("error", 10.0), headline=True),
        Metric("within 5 px", mean_of("within5"), headline=True),
        Metric("within 10 px", mean_of("within10"), headline=True),
        Metric("median within 5 px", mean_of("median_within5")),
        Metric("marks within 5 px", mean_of("marks_within5")),
        Metric("median error px", median_of("error"), "value", higher_is_better=False),
        Metric("accepted", mean_of("accepted")),
        Metric("sure but wrong", mean_of("sure_but_wrong"), higher_is_better=False),
        Metric("median seconds", median_of("seconds"), "value", higher_is_better=False),
    ),
    rank_by="error",
    rank_higher_is_better=False,
    curves=recall_curves("error", 20.0),
    curve_axes=("mean landmark error in pixels", "share of pairs"),
)
