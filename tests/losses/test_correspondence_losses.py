"""Every loss against numbers computed by hand, and its gradient against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from coam.losses import correspondence as corr


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def everything(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def test_masked_mean_counts_only_the_masked() -> None:
    values, mask = tensor([[1.0, 2.0, 30.0]]), torch.tensor([[True, True, False]])
    assert float(corr.masked_mean(values, mask)) == 1.5
    assert float(corr.masked_mean(values, ~mask & mask)) == 0.0


def test_pair_mean_weighs_pairs_equally_and_poor_pairs_less() -> None:
    values = torch.cat([torch.full((1, 100), 2.0), torch.full((1, 100), 4.0)])
    mask = everything(2, 100)
    mask[1, 50:] = False
    assert float(corr.pair_mean(values, mask)) == pytest.approx(3.0)  # 50 points count as much as 100
    mask[1, 8:] = False
    assert float(corr.pair_mean(values, mask)) == pytest.approx((2.0 + 4.0 * 8 / 32) / 2)
    mask[1] = False
    assert float(corr.pair_mean(values, mask)) == pytest.approx(2.0)  # a pair without points is no pair
    assert float(corr.pair_mean(values, mask & ~mask)) == 0.0


def test_distance_of_unit_vectors() -> None:
    angles = tensor([0.0, 60.0, 90.0, 180.0]).deg2rad()
    expected = tensor([1e-4, 1.0, math.sqrt(2), 2.0])
    assert torch.allclose(corr.distance(angles.cos()), expected, atol=1e-6)


def test_hinge_by_hand() -> None:
    # The positive lies at 60 degrees (distance 1); negatives at 180 (2), 90 (1.414) and 0 (0.0001) degrees.
    positive = tensor([[0.5]])
    negative = tensor([[[-1.0, 0.0, 1.0]]])
    valid = everything(1, 1)
    violations = [0.0, 2 - math.sqrt(2), 2 - 1e-4]
    by_hand = 1.0 + sum(violations) / 3 + (violations[1] + violations[2]) / 2
    loss = corr.hinge(positive, negative, everything(1, 1, 3), valid, margin=1.0, hardest=2)
    assert float(loss) == pytest.approx(by_hand / 32, abs=1e-6)  # one point of the 32 that make a full pair
    allowed = torch.tensor([[[True, True, False]]])
    fewer = corr.hinge(positive, negative, allowed, valid, margin=1.0, hardest=2)
    assert float(fewer) == pytest.approx((1.0 + violations[1] / 3 + violations[1] / 2) / 32, abs=1e-6)


@pytest.mark.parametrize(("constant_weight", "times"), [(False, 3.0), (True, 1.0)])
def test_hinge_pulls_positives_once_or_with_every_margin_they_widen(
    constant_weight: bool, times: float
) -> None:
    positive = tensor([[0.5]]).requires_grad_()
    negative = tensor([[[0.5, 0.4]]])  # all within the margin: in the mean and among the hardest
    loss = corr.hinge(
        positive, negative, everything(1, 1, 2), everything(1, 1), 1.0, 2, constant_weight=constant_weight
    )
    loss.backward()
    slope = -1.0  # of sqrt(2 - 2 s) at s = 1/2
    assert positive.grad is not None
    assert float(positive.grad) == pytest.approx(times * slope / 32)


def test_info_nce_by_hand() -> None:
    positive, negative = tensor([[0.9]]), tensor([[[0.4, -0.2, 0.8]]])
    allowed = torch.tensor([[[True, True, False]]])
    loss = corr.info_nce(positive, negative, allowed, everything(1, 1), logit_scale=5.0)
    chosen = math.exp(4.5) / (math.exp(4.5) + math.exp(2.0) + math.exp(-1.0))
    assert float(loss) == pytest.approx(-math.log(chosen) / 32)


def test_dual_softmax_by_hand() -> None:
    first = tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    second = tensor([[[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]]])
    valid = torch.tensor([[True, True, False]])  # the third would be a perfect distractor
    a, b, c, d = 0.8, 0.0, 0.6, 1.0  # similarities [[a, b], [c, d]]
    t = 3.0

    def cross_entropy(right: float, wrong: float) -> float:
        return -math.log(math.exp(t * right) / (math.exp(t * right) + math.exp(t * wrong)))

    rows, columns = cross_entropy(a, b) + cross_entropy(d, c), cross_entropy(a, c) + cross_entropy(d, b)
    loss = corr.dual_softmax(first, second, valid, logit_scale=t)
    assert float(loss) == pytest.approx((rows + columns) / 2 / 32)


def test_cell_targets_by_hand() -> None:
    # Stride 4, 5 x 4 cells: pixel 1.5 is the centre of cell 0, pixel 6.5 lies a quarter cell beyond cell 1.
    points = torch.tensor([[[6.5, 1.5]]])
    index, weight = corr.cell_targets(points, 5, 4, 4.0, torch.tensor([0.5]))
    table = {int(i): float(w) for i, w in zip(index[0, 0], weight[0, 0], strict=True) if w > 0}
    unnormalised = {
        row * 5 + column: math.exp(-((column - 1.25) ** 2 + row**2) / (2 * 0.25))
        for row in (0, 1)
        for column in (0, 1, 2)
    }
    total = sum(unnormalised.values())
    assert table.keys() == unnormalised.keys()  # row -1 is outside
    for cell, value in unnormalised.items():
        assert table[cell] == pytest.approx(value / total, rel=1e-5)
    assert float(weight.sum()) == pytest.approx(1.0)


def test_grid_cross_entropy_by_hand() -> None:
    logits = tensor([[[1.0, 2.0, 0.0, -1.0]]])
    index, weight = torch.tensor([[[1, 0]]]), tensor([[[0.75, 0.25]]])
    total = sum(math.exp(x) for x in (1.0, 2.0, 0.0, -1.0))
    by_hand = math.log(total) - (0.75 * 2.0 + 0.25 * 1.0)
    loss = corr.grid_cross_entropy(logits, index, weight, everything(1, 1))
    assert float(loss) == pytest.approx(by_hand / 32)


def test_grid_logits_and_sample_agree_with_the_map() -> None:
    torch.manual_seed(0)
    features = torch.randn(2, 3, 4, 5)
    # The centre of cell (row 2, column 3) at stride 4 is pixel (13.5, 9.5).
    at_centre = corr.sample(features, torch.tensor([[[13.5, 9.5]], [[13.5, 9.5]]]), 4)
    assert torch.allclose(at_centre[:, 0], features[:, :, 2, 3], atol=1e-6)
    between = corr.sample(features, torch.tensor([[[11.5, 9.5]], [[11.5, 9.5]]]), 4)
    assert torch.allclose(between[:, 0], (features[:, :, 2, 2] + features[:, :, 2, 3]) / 2, atol=1e-5)
    logits = corr.grid_logits(at_centre, features, 7.0)
    assert logits.shape == (2, 1, 20)
    assert float(logits[1, 0, 2 * 5 + 3]) == pytest.approx(
        7 * float(features[1, :, 2, 3].square().sum()), rel=1e-5
    )


def random_input(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.6 - 0.8
    return values.requires_grad_()


def test_gradients_agree_with_finite_differences() -> None:
    allowed = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1)) < 0.7
    valid = torch.tensor([[True, True, False], [True, False, True]])
    positive, negative = random_input(2, 3), random_input(2, 3, 4, seed=2)
    heat = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    first, second = random_input(2, 3, 5, seed=3), random_input(2, 3, 5, seed=4)
    index, weight = torch.randint(6, (2, 3, 9)), torch.full((2, 3, 9), 1 / 9, dtype=torch.float64)
    checks = [
        (lambda p, n: corr.hinge(p, n, allowed, valid, 1.0, 2), (positive, negative)),
        (lambda p, n, t: corr.info_nce(p, n, allowed, valid, t), (positive, negative, heat)),
        (lambda a, b, t: corr.dual_softmax(a, b, valid, t), (first, second, heat)),
        (lambda x: corr.grid_cross_entropy(x, index, weight, valid), (random_input(2, 3, 6, seed=5),)),
        (lambda x: corr.pair_mean(x, valid), (random_input(2, 3, seed=6),)),
    ]
    for function, inputs in checks:
        assert torch.autograd.gradcheck(function, inputs)


def test_points_that_are_not_valid_give_no_gradient() -> None:
    positive, negative = random_input(1, 3), random_input(1, 3, 4, seed=2)
    valid = torch.tensor([[True, False, True]])
    corr.hinge(positive, negative, everything(1, 3, 4), valid).backward()
    assert positive.grad is not None
    assert positive.grad[0, 1] == 0
    assert positive.grad[0, 0] != 0


def test_identical_descriptors_keep_finite_gradients() -> None:
    positive = torch.ones(1, 2, requires_grad=True)
    negative = torch.ones(1, 2, 3, requires_grad=True)
    corr.hinge(positive, negative, everything(1, 2, 3), everything(1, 2)).backward()
    assert positive.grad is not None
    assert negative.grad is not None
    assert torch.isfinite(positive.grad).all()
    assert torch.isfinite(negative.grad).all()


def test_literal_info_nce_by_hand() -> None:
    """Two points, one sure (probability .9), one lost (.1): the log of the mean, not the mean of the logs."""
    positive, scale = tensor([[1.0, 0.0]]), math.log(9.0)
    negative = tensor([[[0.0], [1.0]]])
    valid = everything(1, 2)
    literal = corr.info_nce_literal(positive, negative, everything(1, 2, 1), valid, scale)
    assert float(literal) == pytest.approx(-math.log((0.9 + 0.1) / 2))
    only_first = torch.tensor([[True, False]])
    assert float(corr.info_nce_literal(positive, negative, everything(1, 2, 1), only_first, scale)) == (
        pytest.approx(-math.log(0.9))
    )
    none = corr.info_nce_literal(positive, negative, everything(1, 2, 1), valid & ~valid, scale)
    assert float(none) == 0.0
    usual = -(math.log(0.9) + math.log(0.1)) / 2
    assert usual > float(literal)  # Jensen
    many = positive.repeat(1, 32), negative.repeat(1, 32, 1)
    full = corr.info_nce(*many, everything(1, 64, 1), everything(1, 64), scale)
    assert float(full) == pytest.approx(usual)


def test_own_negatives_are_products_with_each_points_own_cells() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    feature_map = torch.randn(2, 5, 4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    chosen = torch.randint(24, (2, 3, 7), generator=generator)
    found = corr.own_similarities(query, feature_map, chosen)
    for b in range(2):
        for point in range(3):
            for k in range(7):
                row, column = divmod(int(chosen[b, point, k]), 6)
                wanted = query[b, point] @ feature_map[b, :, row, column]
                assert found[b, point, k].item() == pytest.approx(wanted.item())
    assert torch.autograd.gradcheck(lambda q, m: corr.own_similarities(q, m, chosen), (query, feature_map))


def test_every_point_is_sampled_where_it_lies() -> None:
    features = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    places = torch.tensor([[[1.5, 1.5], [13.5, 9.5], [17.5, 13.5]], [[5.5, 9.5], [5.5, 9.5], [-9.0, 99.0]]])
    found = corr.sample(features, places, 4)
    assert found.shape == (2, 3, 3)
    for pair, cells in enumerate([[(0, 0), (2, 3), (3, 4)], [(2, 1), (2, 1), (3, 0)]]):
        for point, (row, column) in enumerate(cells):
            torch.testing.assert_close(found[pair, point], features[pair, :, row, column])
