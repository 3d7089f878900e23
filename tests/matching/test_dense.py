"""Given keypoints and the paper's refinement compare what the ranking compares: a toy by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from coam.geometry.coordinates import cell_centres
from coam.matching.dense import LEAST_SHARE, DenseMatching
from coam.matching.grid import sample_map
from coam.matching.refine import seek
from coam.matching.selection import choose_spread
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


def test_a_keypoint_between_cells_has_a_descriptor_of_unit_length():
    """Half way between (1, 0) and (0, 1): its product with (.6, .8) is .7 / sqrt(.5), not .7."""
    first, second = toy([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]), toy([[0.6, 0.8]], [1.0])
    matching = DenseMatching(MatcherConfig(ranking="similarity", refinement="none"), 20.0)
    found = matching.of_keypoints(first, second, torch.tensor([[3.5, 1.5]]))
    assert found.score.tolist() == pytest.approx([0.7 / 0.5**0.5])


# ---- the whole way from descriptors to matches, step by step


def textured(rows: int, columns: int, seed: int) -> DenseDescriptors:
    """Random descriptors at stride 4, fine ones at stride 2 with peaks of any width, scores in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    descriptors = normalize(torch.randn(1, 16, rows, columns, generator=generator), dim=1)
    fine = 2 * torch.randn(1, 6, 2 * rows, 2 * columns, generator=generator)
    score = torch.rand(1, 1, rows, columns, generator=generator)
    return DenseDescriptors(descriptors, score, 4, (4 * rows, 4 * columns), fine, 2)


FINE = MatcherConfig(refinement="fine", max_matches=12, crowding=0.5, min_score=0.0, min_distinctiveness=0.5)


def sharpness_of(spread: Tensor) -> Tensor:
    return torch.minimum(torch.ones_like(spread), 1.8 / (0.5 + spread))


@pytest.mark.parametrize(("rows0", "columns0"), [(14, 20), (20, 120)])
def test_grid_matches_step_by_step(rows0, columns0):
    """More than are wanted are mutual; those of low score take no part; both ways of seeking count alike."""
    dense0, dense1 = textured(rows0, columns0, 1), textured(16, 12, 2)
    found = DenseMatching(FINE, 6.0).between(dense0, dense1)
    sides = []
    for dense in (dense0, dense1):
        worth = (dense.score.flatten() >= 0.5).nonzero().flatten()
        assert 64 <= len(worth) < dense.score.numel()
        rows, columns = dense.score.shape[-2:]
        sides.append(
            (worth, dense.descriptors[0].flatten(1).t()[worth], cell_centres(columns, rows, 4)[worth])
        )
    (index0, descriptors0, places0), (index1, descriptors1, places1) = sides
    logits = 6.0 * descriptors0 @ descriptors1.t()
    probability = logits.softmax(dim=0) * logits.softmax(dim=1)
    here = torch.arange(len(index0))
    mutual = here[logits.argmax(dim=0)[logits.argmax(dim=1)] == here]
    there = logits.argmax(dim=1)[mutual]
    assert len(mutual) > 24
    rank = probability[mutual, there].sqrt()
    rank = rank * dense0.score.flatten()[index0[mutual]] * dense1.score.flatten()[index1[there]]
    points0, near1 = places0[mutual], places1[there]
    seen = seek(dense0.fine[0], dense1.fine[0], points0, near1, 2, FINE.fine_radius)
    score = rank * sharpness_of(seen.spread)
    assert (sharpness_of(seen.spread) < 1).any()
    long_side, short_side = 4 * columns0, 4 * rows0
    chosen = choose_spread(points0, score, 12, long_side / 16, 0.5)
    if long_side > 100:  # cells hold several matches: those of another size choose others
        for other in (short_side / 16, long_side * 16):
            assert choose_spread(points0, score, 12, other, 0.5).tolist() != chosen.tolist()
    back = seek(dense1.fine[0], dense0.fine[0], seen.points[chosen], points0[chosen], 2, FINE.fine_radius)
    assert found.index0.tolist() == index0[mutual[chosen]].tolist()
    assert found.index1.tolist() == index1[there[chosen]].tolist()
    torch.testing.assert_close(found.score, score[chosen])
    torch.testing.assert_close(found.points0, points0[chosen])
    torch.testing.assert_close(found.points1, seen.points[chosen] - (back.points - points0[chosen]) / 2)


def test_matches_of_keypoints_step_by_step():
    """Fine descriptors take part in the choice, and in the score by how near to each other both are found."""
    dense0, dense1 = textured(14, 20, 3), textured(16, 12, 4)
    config = replace(FINE, min_distinctiveness=0.0)
    generator = torch.Generator().manual_seed(5)
    points0, points1 = (
        torch.rand(40, 2, generator=generator) * torch.tensor([w - 1.0, h - 1.0])
        for h, w in (dense0.size, dense1.size)
    )
    found = DenseMatching(config, 6.0).between_keypoints(dense0, dense1, points0, points1)
    one, other = (
        sample_map(dense.descriptors, points[None], 4, normalise=True)[0]
        for dense, points in ((dense0, points0), (dense1, points1))
    )
    fine0, fine1 = (
        sample_map(dense.fine, points[None], 2)[0] for dense, points in ((dense0, points0), (dense1, points1))
    )
    logits = 6.0 * one @ other.t() + fine0 @ fine1.t() / 6**0.5
    here = torch.arange(40)
    index0 = here[logits.argmax(dim=0)[logits.argmax(dim=1)] == here]
    index1 = logits.argmax(dim=1)[index0]
    assert len(index0) > 8
    exponent = 6.0 * (one[index0] * other[index1]).sum(dim=1)
    over1 = (6.0 * one[index0] @ dense1.descriptors[0].flatten(1)).logsumexp(dim=1)
    over0 = (6.0 * other[index1] @ dense0.descriptors[0].flatten(1)).logsumexp(dim=1)
    score = (exponent - (over0 + over1) / 2).exp()
    for dense, points in ((dense0, points0[index0]), (dense1, points1[index1])):
        score = score * sample_map(dense.score, points[None], 4)[0, :, 0]
    ends = points0[index0], points1[index1]
    there = seek(dense0.fine[0], dense1.fine[0], *ends, 2, config.fine_radius)
    back = seek(dense1.fine[0], dense0.fine[0], *ends[::-1], 2, config.fine_radius)
    apart = ((there.points - ends[1]) - (back.points - ends[0])) / 2
    score = score * sharpness_of(there.spread)
    score = score * torch.exp(-((apart / config.keypoint_tolerance) ** 2).sum(dim=1) / 2)
    order = score.argsort(descending=True)
    assert found.index0.tolist() == index0[order].tolist()
    assert found.index1.tolist() == index1[order].tolist()
    torch.testing.assert_close(found.score, score[order], rtol=1e-4, atol=1e-7)
