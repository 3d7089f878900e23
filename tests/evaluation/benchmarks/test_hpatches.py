from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.evaluation.benchmarks.hpatches import D2NET_LEFT_OUT, HPATCHES, load_hpatches, score_hpatches
from coam.evaluation.metrics.tables import per_sequence, ranked, summarise
from coam.evaluation.pairs import EvaluationPair, limit_pairs
from support.simple_matchers import identity_matches, matches_of, save, textured


def test_the_published_layout_is_read(hpatches_root: Path) -> None:
    pairs = load_hpatches(hpatches_root)
    names = [f"i_one/1-{k}" for k in range(2, 7)] + ["v_two/1-2", "v_two/1-3"]
    assert [pair.name for pair in pairs] == names
    assert pairs[0].subsets == ("illumination",)
    assert pairs[-1].subsets == ("viewpoint",)
    assert pairs[0].image1.name == "2.ppm"
    assert pairs[-1].homography is not None
    assert pairs[-1].homography[0].tolist() == [1, 0, -3]


def test_the_eight_large_sequences_are_left_out(hpatches_root: Path) -> None:
    assert len(D2NET_LEFT_OUT) == 8
    (hpatches_root / "i_one").rename(hpatches_root / "i_pencils")
    assert {pair.sequence for pair in load_hpatches(hpatches_root)} == {"v_two"}
    assert len(load_hpatches(hpatches_root, keep_large=True)) == 7


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "v_two" / "3.png").unlink(), "v_two has no image 3"),
        (
            lambda root: (root / "v_two" / "H_1_3").write_text("1 2 3"),
            "v_two/H_1_3 does not hold nine numbers",
        ),
        (
            lambda root: (root / "v_two" / "H_1_3").write_text("x " * 9),
            "v_two/H_1_3 does not hold nine numbers",
        ),
        (lambda root: (root / "v_two" / "H_1_3").write_text("0 " * 9), "not an invertible homography"),
    ],
)
def test_missing_and_broken_files_are_named(hpatches_root: Path, damage, message: str) -> None:
    damage(hpatches_root)
    with pytest.raises(DataError, match=message):
        load_hpatches(hpatches_root)


def test_an_empty_folder_says_what_to_download(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"hpatches-sequences-release.tar.gz"):
        load_hpatches(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load_hpatches(tmp_path / "nowhere")


def test_mma_of_planted_errors() -> None:
    pair = EvaluationPair(
        "p", Path("a"), Path("b"), "s", homography=np.array([[1, 0, 10], [0, 1, 0], [0, 0, 1.0]])
    )
    points0 = np.array([[10, 10], [50, 80], [200, 300], [400, 100], [30, 400.0]])
    planted = np.array([[0.5, 0], [0, 2.5], [0, 4], [8, 0], [60, 0.0]])
    row = score_hpatches(pair, matches_of(points0, points0 + np.array([10, 0]) + planted))
    assert [row[f"mma@{t}"] for t in (1, 2, 3, 4, 5, 8, 10)] == [0.2, 0.2, 0.4, 0.6, 0.6, 0.8, 0.8]
    assert row["matches"] == 5


def test_corner_error_is_measured_at_a_short_side_of_480() -> None:
    """A shift of 12 px found in a 1600 x 1200 photo is 12 * 480 / 1200 = 4.8 px in the protocol's frame."""
    pair = EvaluationPair("p", Path("a"), Path("b"), "s", homography=np.eye(3))
    points = np.random.default_rng(0).uniform(0, 1200, (100, 2))
    row = score_hpatches(pair, matches_of(points, points + np.array([12, 0]), (1600, 1200)))
    assert row["corner_error"] == pytest.approx(4.8, abs=0.01)


def test_a_pair_without_matches_counts_as_a_failure() -> None:
    pair = EvaluationPair("p", Path("a"), Path("b"), "s", homography=np.eye(3))
    row = score_hpatches(pair, matches_of(np.zeros((0, 2)), np.zeros((0, 2))))
    assert row["mma@3"] == 0
    assert row["corner_error"] == float("inf")
    assert row["matches"] == 0


def test_every_pair_counts_once_however_many_matches_it_has() -> None:
    pair = EvaluationPair("p", Path("a"), Path("b"), "s", ("viewpoint",), homography=np.eye(3))
    points = np.random.default_rng(0).uniform(0, 400, (1000, 2))
    rows = [
        score_hpatches(pair, matches_of(points, points)),
        score_hpatches(pair, matches_of(points[:10], points[:10] + 100)),
    ]
    other = EvaluationPair("q", Path("a"), Path("b"), "t", ("illumination",), homography=np.eye(3))
    tables = summarise([pair, other], rows, HPATCHES.metrics, resamples=10)
    assert tables["all"]["MMA@3"]["value"] == 0.5
    assert tables["viewpoint"]["MMA@3"]["value"] == 1.0
    assert tables["illumination"]["MMA@3"]["value"] == 0.0
    assert tables["all"]["matches"]["value"] == 505
    assert per_sequence([pair, other], rows, HPATCHES.metrics)["t"]["MMA@3"] == 0
    assert ranked([pair, other], rows, "mma@3", higher_is_better=True) == [("q", 0.0), ("p", 1.0)]
    assert ranked([pair, other], rows, "corner_error", higher_is_better=False)[0][0] == "q"


def test_limit_sees_every_part_of_the_benchmark(hpatches_root: Path) -> None:
    chosen = limit_pairs(load_hpatches(hpatches_root), 3)
    assert [pair.name for pair in chosen] == ["i_one/1-2", "i_one/1-5", "v_two/1-3"]
    assert len(limit_pairs(load_hpatches(hpatches_root), 100)) == 7


def test_identity_matches_are_right_where_only_the_light_changes(hpatches_root: Path) -> None:
    pair = load_hpatches(hpatches_root)[0]
    row = score_hpatches(pair, identity_matches(pair.image0, pair.image1))
    assert row["mma@1"] == 1.0
    assert row["corner_error"] < 1e-3


def test_a_jpg_is_found_too(tmp_path: Path) -> None:
    for k in (1, 2):
        save(tmp_path / "v_x" / f"{k}.jpg", textured())
    (tmp_path / "v_x" / "H_1_2").write_text("1 0 0 0 1 0 0 0 1")
    assert load_hpatches(tmp_path)[0].image0.name == "1.jpg"
