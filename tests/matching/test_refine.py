"""Refinement recovers planted sub-pixel positions."""

import math

import pytest
import torch
from torch import Tensor

from coam.geometry.coordinates import cell_centres
from coam.matching.refine import RefinedPoints, refine_paper, refine_quadratic, refine_softargmax

COLUMNS, ROWS, STEP = 12, 9, 4.0
GRID = cell_centres(COLUMNS, ROWS, STEP)


def shifted_features(positions: Tensor, size: int = 64, scale: float = 8.0, seed: int = 0) -> Tensor:
    """Band-limited random unit features (N, 2 * size) of positions (N, 2).

    Cosines and sines of random waves: the inner product of two depends on their distance only and is close to
    a Gaussian of standard deviation `scale`, so a planted position is the true peak.
    """
    generator = torch.Generator().manual_seed(seed)
    waves = torch.randn(2, size, generator=generator, dtype=torch.float64) / scale
    phase = positions.double() @ waves
    return torch.cat([phase.cos(), phase.sin()], dim=1).div(math.sqrt(size)).float()


def nearest_grid_position(truth: Tensor) -> Tensor:
    return torch.cdist(truth, GRID).argmin(dim=1)


def planted(count: int, margin: float, seed: int) -> Tensor:
    low = torch.tensor([margin, margin])
    high = torch.tensor([COLUMNS * STEP - 1 - margin, ROWS * STEP - 1 - margin])
    return low + torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * (high - low)


def error_in_cells(refined: RefinedPoints, truth: Tensor) -> Tensor:
    return (refined.points - truth).norm(dim=1) / STEP


@pytest.mark.parametrize(
    ("scale", "mean", "worst"), [(8.0, 0.03, 0.08), (12.0, 0.015, 0.05), (16.0, 0.01, 0.03)]
)
def test_quadratic_recovers_planted_positions(scale, mean, worst):
    """The wider the peak (2, 3, 4 cells), the closer it is to a paraboloid."""
    truth = planted(400, margin=8.0, seed=1)
    index = nearest_grid_position(truth)
    refined = refine_quadratic(
        shifted_features(truth, scale=scale), shifted_features(GRID, scale=scale), index, COLUMNS, ROWS, GRID
    )
    coarse = (GRID[index] - truth).norm(dim=1) / STEP
    assert coarse.mean() > 0.35
    assert error_in_cells(refined, truth).mean() < mean
    assert error_in_cells(refined, truth).max() < worst
    assert ((refined.points - GRID[index]).abs() <= STEP / 2 + 1e-4).all()
    assert refined.peak.min() > 0.99  # the height between the grid positions, where the descriptors agree


def test_quadratic_is_exact_on_a_tilted_paraboloid():
    """Features (x^2, x, xy, y, y^2, 1) with a query of coefficients make any quadratic surface."""
    x, y = GRID[:, 0] / STEP, GRID[:, 1] / STEP
    features = torch.stack([x * x, x * y, y * y, x, y, torch.ones_like(x)], dim=1)
    hessian = torch.tensor([[-1.0, 0.6], [0.6, -0.8]])
    cell = torch.tensor([[5.3, 4.2], [6.1, 3.4], [4.95, 4.9]])
    query = []
    for peak in cell:
        linear = -(hessian @ peak)
        query.append([hessian[0, 0] / 2, hessian[0, 1], hessian[1, 1] / 2, linear[0], linear[1], 7.0])
    truth = cell * STEP
    index = nearest_grid_position(truth)
    refined = refine_quadratic(torch.tensor(query), features, index, COLUMNS, ROWS, GRID)
    torch.testing.assert_close(refined.points, truth, atol=1e-3, rtol=0)
    # Width of exp(similarity) along each axis alone: step / sqrt(-second difference).
    assert refined.spread[0].item() == pytest.approx(STEP * math.hypot(1, 1 / math.sqrt(0.8)), rel=1e-3)


def test_quadratic_at_the_edge_keeps_the_axis_that_lacks_a_neighbour():
    truth = torch.tensor([[0.9, 14.0], [20.0, 1.2], [46.0, 34.3]])
    index = nearest_grid_position(truth)
    refined = refine_quadratic(shifted_features(truth), shifted_features(GRID), index, COLUMNS, ROWS, GRID)
    centre = GRID[index]
    assert refined.points[0, 0] == centre[0, 0]
    assert refined.points[1, 1] == centre[1, 1]
    assert torch.equal(refined.points[2], centre[2])
    assert abs(refined.points[0, 1] - 14.0) < 0.3
    assert abs(refined.points[1, 0] - 20.0) < 0.3
    assert torch.isfinite(refined.points).all()


def test_quadratic_on_a_plateau_stays():
    refined = refine_quadratic(
        torch.ones(1, 3), torch.ones(len(GRID), 3), torch.tensor([40]), COLUMNS, ROWS, GRID
    )
    assert torch.equal(refined.points[0], GRID[40])
    assert refined.spread.isinf().all()


def hand_made(values: list[list[float]]) -> tuple[Tensor, Tensor]:
    """A 3x3 grid with step 10 whose similarity with the query (1,) is `values`."""
    return torch.tensor([[1.0]]), torch.tensor(values).view(9, 1)


def test_paper_by_hand():
    query, features = hand_made([[0.5, 0.5, 0.5], [0.5, 0.9, 0.7], [0.5, 0.5, 0.5]])
    grid = cell_centres(3, 3, 10)
    refined = refine_paper(query, features, torch.tensor([4]), 3, 3, grid)
    # Weights after subtracting 0.5: 0.4 at the centre (14.5) and 0.2 to its right (24.5).
    torch.testing.assert_close(refined.points, torch.tensor([[14.5 + 10 * 0.2 / 0.6, 14.5]]))
    assert refined.peak.item() == pytest.approx(2 / 3)
    assert refined.spread.item() == pytest.approx(10 * math.sqrt(2 / 9))


def test_paper_leaves_out_what_lies_outside_the_grid():
    query, features = hand_made([[0.9, 0.6, 0.0], [0.3, 0.5, 0.0], [0.0, 0.0, 0.0]])
    grid = cell_centres(3, 3, 10)
    refined = refine_paper(query, features, torch.tensor([0]), 3, 3, grid)
    weights = torch.tensor([0.6, 0.3, 0.0, 0.2]) / 1.1  # minimum 0.3 of the four that exist
    positions = torch.tensor([[4.5, 4.5], [14.5, 4.5], [4.5, 14.5], [14.5, 14.5]])
    torch.testing.assert_close(refined.points[0], weights @ positions)


def test_paper_on_a_plateau_stays():
    refined = refine_paper(
        torch.ones(2, 3), torch.ones(len(GRID), 3), torch.tensor([0, 40]), COLUMNS, ROWS, GRID
    )
    assert torch.equal(refined.points, GRID[[0, 40]])
    assert refined.peak.tolist() == [1.0, 1.0]


def test_paper_is_better_than_the_grid_alone():
    truth = planted(400, margin=8.0, seed=2)
    index = nearest_grid_position(truth)
    refined = refine_paper(
        shifted_features(truth, scale=4.0), shifted_features(GRID, scale=4.0), index, COLUMNS, ROWS, GRID
    )
    coarse = (GRID[index] - truth).norm(dim=1) / STEP
    assert error_in_cells(refined, truth).mean() < 0.6 * coarse.mean()


def fine_map(stride: float, height: int, width: int, scale: float) -> Tensor:
    cells = cell_centres(width, height, stride)
    return shifted_features(cells, size=256, scale=scale).t().reshape(-1, height, width)


@pytest.mark.parametrize(
    ("stride", "dtype"), [(2.0, torch.float32), (4.0, torch.float32), (2.0, torch.float64)]
)
def test_softargmax_recovers_planted_positions(stride, dtype):
    """A correlation peak with standard deviation s gives, under logit_scale f, one of about s / sqrt(f)."""
    height, width, scale, logit_scale, radius = 40, 50, 4.0 * stride, 25.0, 4
    low = 8 * stride
    truth = low + torch.rand(300, 2, generator=torch.Generator().manual_seed(3)) * torch.tensor(
        [width * stride - 2 * low, height * stride - 2 * low]
    )
    query = shifted_features(truth, size=256, scale=scale)
    # The coarse position is wrong by up to half a cell of the window's grid on top of the cell rounding.
    centres = truth + (torch.rand(300, 2, generator=torch.Generator().manual_seed(4)) - 0.5) * stride
    refined = refine_softargmax(
        query.to(dtype),
        fine_map(stride, height, width, scale).to(dtype),
        centres,
        stride,
        radius,
        logit_scale,
    )
    error = (refined.points - truth).norm(dim=1) / stride
    assert ((centres - truth).norm(dim=1) / stride).mean() > 0.3
    assert error.max() < 0.05
    assert refined.points.dtype == torch.float32
    # Peak of standard deviation 4 cells / sqrt(25) = 0.8 cells per axis.
    expected_spread = 0.8 * stride * math.sqrt(2)
    assert refined.spread.mean().item() == pytest.approx(expected_spread, rel=0.1)
    assert 0.1 < refined.peak.min() <= refined.peak.max() < 0.4


def test_softargmax_by_hand():
    """One row of three cells, similarities log(1), log(2), log(1): weights 1/4, 1/2, 1/4."""
    feature_map = torch.tensor([0.0, math.log(2.0), 0.0]).view(1, 1, 3)
    refined = refine_softargmax(torch.ones(1, 1), feature_map, torch.tensor([[5.5, 1.5]]), 4.0, 1, 1.0)
    torch.testing.assert_close(refined.points, torch.tensor([[5.5, 1.5]]))
    assert refined.peak.item() == pytest.approx(0.5)
    assert refined.spread.item() == pytest.approx(4 * math.sqrt(0.5))


def test_softargmax_never_reads_outside_the_map():
    """Values that wrap around or repeat at the border would win here if they were read."""
    height, width = 5, 6
    feature_map = torch.zeros(1, height, width)
    feature_map[0, :, -1] = 50.0
    feature_map[0, 0, 0] = 10.0
    centres = torch.tensor([[0.0, 0.0], [0.0, 4.0], [-30.0, -30.0], [500.0, 2.0]])
    refined = refine_softargmax(torch.ones(4, 1), feature_map, centres, 1.0, 2, 10.0)
    torch.testing.assert_close(refined.points[0], torch.zeros(2), atol=1e-3, rtol=0)
    # Around (0, 4) all inside cells are equal: the mean of columns 0..2 and rows 2..4.
    torch.testing.assert_close(refined.points[1], torch.tensor([1.0, 3.0]))
    # Centres outside the image use the nearest cells.
    torch.testing.assert_close(refined.points[2], torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(refined.points[3], torch.tensor([5.0, 2.0]), atol=1e-3, rtol=0)


def test_softargmax_with_a_window_larger_than_the_map():
    refined = refine_softargmax(
        torch.ones(1, 2), torch.ones(2, 3, 2), torch.tensor([[1.0, 1.0]]), 1.0, 5, 1.0
    )
    torch.testing.assert_close(refined.points, torch.tensor([[0.5, 1.0]]))
    assert refined.peak.item() == pytest.approx(1 / 6)


def test_chunking_changes_nothing(monkeypatch):
    truth = planted(50, margin=6.0, seed=5)
    query, features = shifted_features(truth), shifted_features(GRID)
    index = nearest_grid_position(truth)
    whole = refine_quadratic(query, features, index, COLUMNS, ROWS, GRID)
    monkeypatch.setattr("coam.matching.refine._GATHER_ELEMENTS", 3 * 9 * query.shape[1])
    parts = refine_quadratic(query, features, index, COLUMNS, ROWS, GRID)
    torch.testing.assert_close(parts.points, whole.points)


@pytest.mark.parametrize("refine", [refine_paper, refine_quadratic])
def test_no_matches_on_the_grid(refine):
    none = torch.zeros(0, dtype=torch.int64)
    refined = refine(torch.zeros(0, 8), torch.ones(len(GRID), 8), none, COLUMNS, ROWS, GRID)
    assert refined.points.shape == (0, 2)
    assert refined.peak.shape == refined.spread.shape == (0,)


def test_no_matches_in_the_window():
    refined = refine_softargmax(torch.zeros(0, 8), torch.ones(8, 4, 4), torch.zeros(0, 2), 2.0, 2, 1.0)
    assert refined.points.shape == (0, 2)
    assert refined.peak.shape == refined.spread.shape == (0,)
