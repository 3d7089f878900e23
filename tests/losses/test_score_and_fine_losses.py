"""Distinctiveness targets and the fine stage, against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from coam.losses import distinctiveness as dist
from coam.losses.correspondence import fine_loss, window


def test_confusion_target_is_the_papers() -> None:
    # Similarity 0.9 is distance 0.447, 0.4 is 1.095; the third is near but not allowed.
    negative = torch.tensor([[[0.9, 0.4, 0.95], [0.9, 0.8, 0.7], [0.1, 0.2, 0.3]]])
    allowed = torch.tensor([[[True, True, False], [True, True, True], [True, True, True]]])
    target = dist.confusion_target(negative, allowed, margin=1.0, tau=0.25)
    assert target[0].tolist() == pytest.approx([2**-0.25, 4**-0.25, 1.0])


def test_absolute_error_by_hand_and_blind_to_the_target() -> None:
    score = torch.tensor([[0.2, 0.9, 0.5]], requires_grad=True)
    target = torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)
    loss = dist.absolute_error(score, target, torch.tensor([[True, True, False]]))
    assert loss.item() == pytest.approx(0.35)
    loss.backward()
    assert target.grad is None
    assert score.grad is not None
    assert score.grad[0].tolist() == pytest.approx([-0.5, 0.5, 0.0])


def test_correctness_target_looks_at_rows_and_columns() -> None:
    logits = torch.zeros(1, 3, 20)  # 5 columns, 4 rows
    for point, (row, column) in enumerate([(2, 3), (2, 3), (3, 0)]):
        logits[0, point, row * 5 + column] = 1.0
    truth = torch.tensor([[[3.4, 2.0], [3.0, 0.4], [4.0, 2.0]]])  # (x, y); the last is near only if rows wrap
    assert dist.correctness_target(logits, truth, 5, 1.5).tolist() == [[1.0, 0.0, 0.0]]
    assert dist.correctness_target(logits, truth, 5, 1.7).tolist() == [[1.0, 1.0, 0.0]]
    per_pair = torch.tensor([[0.3]])
    assert dist.correctness_target(logits, truth, 5, per_pair).tolist() == [[0.0, 0.0, 0.0]]


def test_cross_entropy_by_hand_and_bounded() -> None:
    score = torch.tensor([[0.8, 0.3, 1.0]])
    target = torch.tensor([[1.0, 0.0, 0.0]])
    loss = dist.cross_entropy(score, target, torch.tensor([[True, True, False]]))
    assert float(loss) == pytest.approx(-(math.log(0.8) + math.log(0.7)) / 2)
    certain = dist.cross_entropy(score, target, torch.tensor([[False, False, True]]))
    assert float(certain) == pytest.approx(-math.log(1e-4), rel=1e-3)
    missed = dist.cross_entropy(torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([[True]]))
    assert float(missed) == pytest.approx(-math.log(1e-4), rel=1e-3)


def test_cross_entropy_gradient() -> None:
    score = torch.tensor([[0.8, 0.25]], requires_grad=True)
    dist.cross_entropy(score, torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])).backward()
    assert score.grad is not None  # d/ds of -log s and of -log(1 - s), halved by the mean
    assert score.grad[0].tolist() == pytest.approx([-0.5 / 0.8, 0.5 / 0.75], rel=1e-5)


def test_window_reads_the_right_cells() -> None:
    columns, rows = 6, 5
    x, y = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy")
    cell_map = torch.stack([x, y]).float().unsqueeze(0)  # each cell holds its own (column, row)
    # Stride 2: pixel (6.5, 4.5) is cell (3, 2); pixel (0.5, 0.5) is the corner.
    features, positions, inside = window(cell_map, torch.tensor([[[6.9, 4.1], [0.5, 0.5]]]), 2, 1)
    assert features.shape == (1, 2, 9, 2)
    assert features[0, 0].tolist() == [[c, r] for r in (1, 2, 3) for c in (2, 3, 4)]
    assert torch.equal(positions[0, 0], features[0, 0] * 2 + 0.5)
    assert inside[0, 0].all()
    assert inside[0, 1].tolist() == [False, False, False, False, True, True, False, True, True]
    features, positions, inside = window(cell_map, torch.tensor([[[10.5, 8.5]]]), 2, 1)  # the last
    assert inside[0, 0].tolist() == [True, True, False, True, True, False, False, False, False]
    assert features[0, 0].tolist() == [[c, r] for r in (3, 4, 4) for c in (4, 5, 5)]  # the nearest inside
    assert positions[0, 0, -1].tolist() == [12.5, 10.5]


def fine_input(rows: int = 5, columns: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.rand(1, 1, 4, generator=generator, dtype=torch.float64)
    return query, torch.rand(1, 4, rows, columns, generator=generator, dtype=torch.float64)


def test_fine_loss_by_hand() -> None:
    query, fine_map = fine_input()
    centre, truth = torch.tensor([[[6.5, 4.5]]]).double(), torch.tensor([[[7.0, 4.9]]]).double()
    loss, error = fine_loss(query, fine_map, centre, truth, torch.tensor([[True]]), 2, 1)
    cells = [(c, r) for r in (1, 2, 3) for c in (2, 3, 4)]
    logits = [sum(float(query[0, 0, f] * fine_map[0, f, r, c]) for f in range(4)) / 2 for c, r in cells]
    total = sum(math.exp(v) for v in logits)
    weight = [math.exp(v) / total for v in logits]
    pixels = [(2 * c + 0.5, 2 * r + 0.5) for c, r in cells]
    wanted = [math.exp(-(((x - 7.0) / 2) ** 2 + ((y - 4.9) / 2) ** 2) / (2 * 0.45**2)) for x, y in pixels]
    wanted = [w / sum(wanted) for w in wanted]
    entropy = -sum(t * math.log(w) for t, w in zip(wanted, weight, strict=True))
    expected = [sum(w * p[k] for w, p in zip(weight, pixels, strict=True)) for k in (0, 1)]
    distance = math.hypot(expected[0] - 7.0, expected[1] - 4.9)
    assert distance < 1.0
    assert float(error) == pytest.approx(distance, rel=1e-5)
    assert float(loss) == pytest.approx((entropy + distance**2 / 2) / 32, rel=1e-5)


def test_beyond_a_pixel_the_error_counts_linearly() -> None:
    """One bright cell at the corner of the window, the truth at its middle: sqrt(8) pixels off."""
    query, fine_map = torch.ones(1, 1, 1), torch.zeros(1, 1, 5, 6)
    fine_map[0, 0, 1, 2] = 40.0
    middle = torch.tensor([[[6.5, 4.5]]])
    loss, error = fine_loss(query, fine_map, middle, middle, torch.tensor([[True]]), 2, 1)
    assert float(error) == pytest.approx(math.sqrt(8), rel=1e-5)
    weights = [math.exp(-(x * x + y * y) / (2 * 0.45**2)) for x in (-1, 0, 1) for y in (-1, 0, 1)]
    entropy = 40.0 * (1 - weights[0] / sum(weights))  # of all but the bright cell the logarithm is -40
    assert float(loss) == pytest.approx((entropy + math.sqrt(8) - 0.5) / 32, rel=1e-5)


def test_fine_loss_leaves_out_what_the_window_cannot_reach() -> None:
    query, fine_map = fine_input()
    centre = torch.tensor([[[6.5, 4.5]]]).double()
    far = torch.tensor(
        [[[10.6, 4.5]]]
    ).double()  # the window ends at 8.5 and half a cell, here three quarters
    loss, error = fine_loss(query, fine_map, centre, far, torch.tensor([[True]]), 2, 1)
    assert float(loss) == 0.0
    assert float(error) == 0.0
    loss, _ = fine_loss(query, fine_map, centre, far - 1.0, torch.tensor([[True]]), 2, 1)
    assert float(loss) > 0.0


def test_fine_loss_gradient_agrees_with_finite_differences() -> None:
    # The function works in float32 inside, so the finite differences are coarse.
    query, fine_map = fine_input()
    query.requires_grad_()
    centre, truth = torch.tensor([[[6.5, 4.5]]]).double(), torch.tensor([[[7.0, 4.9]]]).double()

    def loss(values: torch.Tensor) -> torch.Tensor:
        return fine_loss(values, fine_map, centre, truth, torch.tensor([[True]]), 2, 1)[0]

    loss(query).backward()
    assert query.grad is not None
    for k in range(4):
        step = torch.zeros_like(query)
        step[0, 0, k] = 1e-2
        slope = (loss(query + step) - loss(query - step)) / 2e-2
        assert float(query.grad[0, 0, k]) == pytest.approx(float(slope), rel=0.02, abs=2e-5)
