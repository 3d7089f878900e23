"""HPatches and any folder in its layout.

Layout (hpatches-sequences-release): ROOT/i_NAME/ or ROOT/v_NAME/ with images 1 .. 6 (.ppm, here also .png,
.jpg) and H_1_2 .. H_1_6, text files of nine numbers mapping pixels of image 1 to pixels of image k. Fewer
than six images are accepted. i_ sequences change illumination, v_ viewpoint.

Protocol (D2-Net, Dusmanu et al., CVPR 2019, section 4.2): the eight sequences with an image larger than 1600
x 1200 are left out (52 illumination and 56 viewpoint sequences stay); image 1 is matched against images 2 ..
6; the error of a match is the distance in image k, in native pixels, between its point and the homography's
image of its point in image 1; a pair's accuracy at t px is the share of its matches with error <= t (0
without matches); the MMA is the mean over pairs. Homography AUC as in LoFTR (Sun et al., CVPR 2021):
coordinates scaled to a short side of 480 px, at most 1000 matches, RANSAC at 3 px, mean error of the four
corners, area below 3 / 5 / 10 px. A pair is solved at 10 px if the same homography is right within 10 px
in the mean over what both images show, in either of them (`visible_error`): corners of a wall that is seen
from far aside may lie beyond its horizon.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.metrics.measures import matching_accuracy
from coam.evaluation.metrics.tables import Metric, Row, auc_of, mean_curves, mean_of
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.runner import Benchmark, Option
from coam.geometry.coordinates import resize_points
from coam.geometry.homography import corner_error, scaled_homography, transfer_errors, visible_error
from coam.geometry.robust import Estimator, RansacOptions, estimate_homography
from coam.types import Matches, Size

THRESHOLDS = tuple(float(t) for t in range(1, 11))
SOLVED = 10.0  # pixels
IMAGE_ENDINGS = (".ppm", ".png", ".jpg", ".jpeg")
D2NET_LEFT_OUT = (
    "i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding", "v_artisans",
    "v_astronautis", "v_talent",
)  # fmt: skip
WHERE = (
    "HPatches: download hpatches-sequences-release.tar.gz (hpatches.github.io) and unpack it; "
    "--root is the folder that holds i_ajuntament, v_abstract, ..."
)


def load_hpatches(root: Path, *, keep_large: bool = False) -> list[EvaluationPair]:
    """Pairs (1, k) of every sequence below `root`; raises DataError with what is missing.

    `keep_large` also takes the eight sequences that the D2-Net protocol leaves out.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. {WHERE}")
    folders = sorted(f for f in root.iterdir() if f.is_dir() and f.name[:2] in ("i_", "v_"))
    if not keep_large:
        folders = [f for f in folders if f.name not in D2NET_LEFT_OUT]
    if not folders:
        raise DataError(f"no i_* or v_* folder in {root}. {WHERE}")
    return [pair for folder in folders for pair in _load_sequence(folder)]


def _load_sequence(folder: Path) -> list[EvaluationPair]:
    matrices = sorted(folder.glob("H_1_*"), key=lambda p: (len(p.name), p.name))
    if not matrices:
        raise DataError(f"{folder.name} has no homography files H_1_2 ..; unpack the sequence again. {WHERE}")
    subset = "illumination" if folder.name.startswith("i_") else "viewpoint"
    first = find_image(folder, "1", folder.name)
    return [
        EvaluationPair(
            name=f"{folder.name}/1-{path.name[4:]}",
            image0=first,
            image1=find_image(folder, path.name[4:], folder.name),
            sequence=folder.name,
            subsets=(subset,),
            homography=read_homography(path),
        )
        for path in matrices
    ]


def find_image(folder: Path, stem: str, name: str) -> Path:
    """FOLDER/STEM with one of the known endings; `name` is what an error calls the folder."""
    for ending in IMAGE_ENDINGS:
        if (folder / f"{stem}{ending}").is_file():
            return folder / f"{stem}{ending}"
    raise DataError(f"{name} has no image {stem} ({', '.join(IMAGE_ENDINGS)}); unpack it again")


def read_homography(path: Path) -> Array:
    """The homography (3, 3), invertible, of a text file of nine numbers."""
    try:
        matrix = np.asarray(path.read_text().split(), dtype=np.float64).reshape(3, 3)
    except ValueError as error:
        raise DataError(
            f"{path.parent.name}/{path.name} does not hold nine numbers; unpack it again"
        ) from error
    if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
        raise DataError(f"{path.parent.name}/{path.name} is not an invertible homography; unpack it again")
    return matrix


def known_homography(pair: EvaluationPair) -> Array:
    """The true homography (3, 3) of a pair; a DataError where it has none."""
    if pair.homography is None:
        raise DataError(f"{pair.name} has no homography")
    return pair.homography


def score_hpatches(
    pair: EvaluationPair, matches: Matches, *, estimator: Estimator = "opencv", threshold: float = 3.0
) -> Row:
    """Figures of one pair: MMA at 1 .. 10 px, number of matches, corner and visible error at a short side of
    480 px.
    """
    homography = known_homography(pair)
    errors = transfer_errors(matches.points0, matches.points1, homography)
    shares = zip(THRESHOLDS, matching_accuracy(errors, THRESHOLDS), strict=True)
    row: Row = {"matches": len(matches)} | {f"mma@{t:g}": float(share) for t, share in shares}
    corner, visible = _scaled_errors(matches, homography, estimator, threshold)
    return row | {"corner_error": corner, "visible_error": visible, "solved@10": float(visible <= SOLVED)}


def _short_side_scale(size: Size, short_side: int = 480) -> tuple[float, float]:
    """(sx, sy) of a resize to whole pixels with the given short side."""
    factor = short_side / min(size)
    return (round(size[0] * factor) / size[0], round(size[1] * factor) / size[1])


def _scaled_errors(
    matches: Matches, true: Array, estimator: Estimator, threshold: float
) -> tuple[float, float]:
    """Corner error and visible error of the homography that the matches give."""
    scale0, scale1 = _short_side_scale(matches.size0), _short_side_scale(matches.size1)
    best = matches.top(1000)
    points0 = resize_points(best.points0.astype(np.float64), scale0)
    points1 = resize_points(best.points1.astype(np.float64), scale1)
    found = estimate_homography(points0, points1, RansacOptions(threshold=threshold, estimator=estimator))
    size = (round(matches.size0[0] * scale0[0]), round(matches.size0[1] * scale0[1]))
    estimated = None if found is None else found.matrix
    wanted = scaled_homography(true, scale0, scale1)
    size1 = (round(matches.size1[0] * scale1[0]), round(matches.size1[1] * scale1[1]))
    return corner_error(estimated, wanted, size), visible_error(estimated, wanted, size, size1)


def match_errors_hpatches(pair: EvaluationPair, matches: Matches) -> Array:
    """Transfer error in pixels (N,) of each match, for pictures."""
    return transfer_errors(matches.points0, matches.points1, known_homography(pair))


HPATCHES = Benchmark(
    name="hpatches",
    load=load_hpatches,
    options=(Option("keep_large", bool, False, "Also the 8 sequences that D2-Net leaves out."),),
    score=score_hpatches,
    settings={"estimator": "opencv", "threshold": 3.0},
    metrics=(
        *(
            Metric(f"MMA@{t:g}", mean_of(f"mma@{t:g}"), "share", headline=t in (1, 3, 5, 10))
            for t in THRESHOLDS
        ),
        Metric("matches", mean_of("matches"), "count", headline=True),
        *(
            Metric(f"homography AUC@{t}", auc_of("corner_error", t), "share", headline=True)
            for t in (3, 5, 10)
        ),
        Metric("solved@10", mean_of("solved@10"), "share"),
    ),
    rank_by="mma@3",
    match_errors=match_errors_hpatches,
    correct_below=3.0,
    curves=mean_curves("mma", THRESHOLDS),
    curve_axes=("threshold in pixels", "mean matching accuracy"),
)
