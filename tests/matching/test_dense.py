"""Given keypoints and the paper's refinement compare what the ranking compares: a toy by hand."""

import pytest
import torch

from coam.matching.dense import LEAST_SHARE, DenseMatching
from coam.matching.settings import MatcherConfig
from coam.models.outputs import DenseDescriptors


def toy(descriptors: list[list[float]], score: list[float]) -> DenseDescriptors:
    """One row of cells of 4 pixels with these descriptors and scores."""
    vectors = torch.tensor(descriptors).t()[None, :, None, :]
    size = (4, 4 * len(score))
    return DenseDescriptors(vectors, torch.tensor(score)[None, None, None, :], 4, size)


# Similarities of (1, 0) with the three cells: 1, .8, .6; times their scores: .2, .72, .6.
FIRST = toy([[1.0, 0.0]] * 3, [1.0, 1.0, 1.0])
SECOND = toy([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]], [0.2, 0.9, 1.0])
POINT = torch.tensor([[5.5, 1.5]])


@pytest.mark.parametrize(
    ("ranking", "cell", "score"), [("dual_softmax", 0, 0.2), ("paper", 1, 0.72), ("similarity", 0, 1.0)]
)
def test_a_keypoint_takes_the_best_by_its_ranking(ranking, cell, score):
    matching = DenseMatching(MatcherConfig(ranking=ranking, refinement="none"), 20.0)
    found = matching.of_keypoints(FIRST, SECOND, POINT)
    assert found.index1.tolist() == [cell]
    assert found.score.tolist() == pytest.approx([score])
    assert found.points1.tolist() == [[1.5 + 4 * cell, 1.5]]


def test_the_papers_refinement_weighs_by_similarity_and_score():
    matching = DenseMatching(MatcherConfig(ranking="paper", refinement="paper"), 20.0)
    found = matching.of_keypoints(FIRST, SECOND, POINT)
    # Weights above the smallest, .2: 0, .52, .4 at x = 1.5, 5.5, 9.5.
    assert found.points1[0, 0].item() == pytest.approx((0.52 * 5.5 + 0.4 * 9.5) / 0.92, abs=1e-4)


def test_without_the_score_the_ranking_is_the_scalar_product():
    """The paper's "w/o conf": the same descriptors, c_kl = <d_k, d_l>; the score changes nothing."""
    first = toy([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], [0.9, 0.1, 0.5])
    second = toy([[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]], [1.0, 0.2, 0.3])
    bare = {"refinement": "none", "min_distinctiveness": 0.0, "min_score": 0.0, "crowding": 1.0}
    found = DenseMatching(MatcherConfig(ranking="similarity", **bare), 20.0).between(first, second)
    # Products: [.8 0 1], [.6 1 0], [.96 .8 .6]; mutual: 0-2 (1), 1-1 (1), 2-0 (.96).
    assert sorted(zip(found.index0.tolist(), found.index1.tolist(), strict=True)) == [(0, 2), (1, 1), (2, 0)]
    assert found.score.tolist() == pytest.approx([1.0, 1.0, 0.96])
    with_score = DenseMatching(MatcherConfig(ranking="paper", **bare), 20.0).between(first, second)
    # r_k r_l c: row 0 [.72 0 .27], row 1 [.06 .02 0], row 2 [.48 .08 .09]: 0 now prefers 0.
    assert (with_score.index0.tolist()[0], with_score.index1.tolist()[0]) == (0, 0)
    assert with_score.score.tolist()[0] == pytest.approx(0.72)


def test_eq_2_is_reported_as_it_is():
    """Two mutual pairs of cells: c_kl = r_k r_l <d_k, d_l>, neither its root nor anything else."""
    first = toy([[1.0, 0.0], [0.0, 1.0]], [0.9, 0.5])
    second = toy([[0.8, 0.6], [0.0, 1.0]], [0.7, 0.6])
    options = {"ranking": "paper", "refinement": "none", "min_distinctiveness": 0.0, "crowding": 1.0}
    found = DenseMatching(MatcherConfig(**options), 20.0).between(first, second)
    assert list(zip(found.index0.tolist(), found.index1.tolist(), strict=True)) == [(0, 0), (1, 1)]
    assert found.score.tolist() == pytest.approx([0.9 * 0.7 * 0.8, 0.5 * 0.6 * 1.0])


def test_masks_leave_as_many_matches_as_were_asked_for():
    matching = DenseMatching(MatcherConfig(max_matches=100), 20.0)
    assert matching.before_masks(1.0).config.max_matches == 100
    assert matching.before_masks(0.3).config.max_matches == 334
    assert (
        matching.before_masks(0.0).config.max_matches == matching.before_masks(LEAST_SHARE).config.max_matches
    )
    assert matching.before_masks(0.0).config.max_matches == round(100 / LEAST_SHARE)
    assert matching.before_masks(0.5).logit_scale == 20.0


def test_a_keypoint_counts_by_both_scores():
    """The dual softmax ranks by similarity times both scores: 0.8 * 0.5 * 0.9."""
    first = toy([[1.0, 0.0], [0.0, 1.0]], [0.5, 1.0])
    second = toy([[0.8, 0.6], [0.0, 1.0]], [0.9, 1.0])
    matching = DenseMatching(MatcherConfig(ranking="dual_softmax", refinement="none"), 20.0)
    found = matching.of_keypoints(first, second, torch.tensor([[1.5, 1.5]]))
    assert found.index1.tolist() == [0]
    assert found.score.tolist() == pytest.approx([0.8 * 0.5 * 0.9])
