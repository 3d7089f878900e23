"""Refinement recovers planted sub-pixel positions."""

import math

import pytest
import torch
from torch import Tensor

from coam.geometry.coordinates import cell_centres
from coam.matching.refine import (
    RefinedPoints,
    fine_logit_scale,
    refine_paper,
    refine_quadratic,
    refine_softargmax,
    seek,
)

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


# ---- against plain loops, on descriptors without any order


def unordered(count: int, seed: int) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))


def test_the_quadratic_surface_by_a_plain_loop():
    columns, rows, step = 4, 3, 6.0
    grid = cell_centres(columns, rows, step)
    features, query = unordered(12, 1), unordered(60, 2)
    index = torch.arange(60) % 12
    refined = refine_quadratic(query, features, index, columns, rows, grid)
    kinds = set()
    for k in range(60):
        row, column = divmod(int(index[k]), columns)
        value = {
            (r, c): float(query[k] @ features[(row + r) * columns + column + c])
            for r in (-1, 0, 1)
            for c in (-1, 0, 1)
            if 0 <= row + r < rows and 0 <= column + c < columns
        }
        slope, bend = {"x": 0.0, "y": 0.0}, {"x": 0.0, "y": 0.0}
        for axis, before, after in (("x", (0, -1), (0, 1)), ("y", (-1, 0), (1, 0))):
            if before in value and after in value:
                slope[axis] = (value[after] - value[before]) / 2
                bend[axis] = value[after] + value[before] - 2 * value[0, 0]
        twist = 0.0
        if len(value) == 9:
            twist = (value[1, 1] - value[1, -1] - value[-1, 1] + value[-1, -1]) / 4
        hessian = torch.tensor([[bend["x"], twist], [twist, bend["y"]]], dtype=torch.float64)
        offset = [-slope[a] / bend[a] if bend[a] < 0 else 0.0 for a in ("x", "y")]
        kind = "alone"
        if bend["x"] < 0 and torch.linalg.det(hessian) > 1e-12:
            top = torch.linalg.solve(hessian, -torch.tensor([slope["x"], slope["y"]], dtype=torch.float64))
            if top.abs().max() <= 1:
                offset, kind = top.tolist(), "joint"
        kinds.add((kind, len(value)))
        offset = [min(max(o, -0.5), 0.5) for o in offset]
        expected = [column * step + 2.5 + offset[0] * step, row * step + 2.5 + offset[1] * step]
        assert refined.points[k].tolist() == pytest.approx(expected, abs=1e-3)
        height = value[0, 0] + 0.5 * (slope["x"] * offset[0] + slope["y"] * offset[1])
        assert refined.peak[k].item() == pytest.approx(height, abs=1e-4)
        width = [step / math.sqrt(-bend[a]) if bend[a] < 0 else math.inf for a in ("x", "y")]
        assert refined.spread[k].item() == pytest.approx(math.hypot(*width), rel=1e-3)
    assert {("joint", 9), ("alone", 9), ("alone", 4)} <= kinds


def test_the_papers_mean_by_a_plain_loop():
    columns, rows, step = 4, 3, 6.0
    grid = cell_centres(columns, rows, step)
    features, query = unordered(12, 3), unordered(24, 4)
    index = torch.arange(24) % 12
    refined = refine_paper(query, features, index, columns, rows, grid)
    for k in range(24):
        row, column = divmod(int(index[k]), columns)
        near = [
            r * columns + c
            for r in range(max(row - 1, 0), min(row + 2, rows))
            for c in range(max(column - 1, 0), min(column + 2, columns))
        ]
        weight = features[near] @ query[k]
        weight = (weight - weight.min()) / (weight - weight.min()).sum()
        mean = weight @ grid[near].float()
        torch.testing.assert_close(refined.points[k], mean, atol=1e-4, rtol=1e-5)
        assert refined.peak[k].item() == pytest.approx(weight.max().item(), rel=1e-4)
        away = (grid[near].float() - mean).square().sum(dim=1)
        assert refined.spread[k].item() == pytest.approx(float(weight @ away) ** 0.5, rel=1e-3)


@pytest.mark.parametrize(("stride", "radius"), [(2.0, 1), (4.0, 2)])
def test_the_softmax_mean_by_a_plain_loop(stride, radius):
    height, width = 5, 7
    fine = unordered(35, 5).t().reshape(5, height, width)
    query = unordered(30, 6)
    centres = (torch.rand(30, 2, generator=torch.Generator().manual_seed(7)) * 1.2 - 0.1) * torch.tensor(
        [width * stride, height * stride]
    )
    refined = refine_softargmax(query, fine, centres, stride, radius, 0.7)
    for k in range(30):
        column = min(max(round((centres[k, 0].item() + 0.5) / stride - 0.5), 0), width - 1)
        row = min(max(round((centres[k, 1].item() + 0.5) / stride - 0.5), 0), height - 1)
        cells = [
            (c, r)
            for r in range(max(row - radius, 0), min(row + radius + 1, height))
            for c in range(max(column - radius, 0), min(column + radius + 1, width))
        ]
        weight = torch.stack([fine[:, r, c] @ query[k] * 0.7 for c, r in cells]).softmax(dim=0)
        place = (torch.tensor(cells) + 0.5) * stride - 0.5
        mean = weight @ place
        torch.testing.assert_close(refined.points[k], mean, atol=1e-4, rtol=1e-5)
        assert refined.peak[k].item() == pytest.approx(weight.max().item(), rel=1e-4)
        away = (place - mean).square().sum(dim=1)
        assert refined.spread[k].item() == pytest.approx(float(weight @ away) ** 0.5, rel=1e-3, abs=1e-4)


def test_what_is_sought_is_what_lies_between_the_cells_here():
    fine0, fine1 = torch.randn(2, 16, 6, 8, generator=torch.Generator().manual_seed(8)).unbind()
    points0 = torch.tensor([[3.5, 5.5], [6.0, 4.5]])  # between four cells of stride 2; a quarter from one
    near1 = torch.tensor([[6.5, 4.5], [8.5, 6.5]])
    query = torch.stack([fine0[:, 2:4, 1:3].mean(dim=(1, 2)), 0.25 * fine0[:, 2, 2] + 0.75 * fine0[:, 2, 3]])
    assert fine_logit_scale(16) == 0.25
    expected = refine_softargmax(query, fine1, near1, 2, 1, 0.25)
    found = seek(fine0, fine1, points0, near1, 2, 1)
    torch.testing.assert_close(found.points, expected.points, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found.spread, expected.spread, atol=1e-4, rtol=1e-4)


def test_a_grid_of_one_row_or_column_keeps_its_place_across():
    for columns, rows in ((5, 1), (1, 5)):
        grid = cell_centres(columns, rows, 4.0)
        values = torch.tensor([0.0, 0.5, 0.9, 0.7, 0.0]).view(5, 1)
        refined = refine_quadratic(torch.ones(1, 1), values, torch.tensor([2]), columns, rows, grid)
        along, across = (0, 1) if rows == 1 else (1, 0)
        assert refined.points[0, along].item() == pytest.approx(9.5 + 4 * 0.1 / 0.6)
        assert refined.points[0, across].item() == 1.5


def test_a_joint_top_beyond_the_neighbours_is_not_believed() -> None:
    """Slopes .3 and .2, bends -1, twist .8: the joint top is (1.28, 1.22) cells off."""
    similarity = torch.tensor([[0.9, 0.3, -0.7], [0.2, 1.0, 0.8], [-0.7, 0.7, 0.9]])
    grid = cell_centres(3, 3, 4)
    found = refine_quadratic(torch.ones(1, 1), similarity.view(9, 1), torch.tensor([4]), 3, 3, grid)
    torch.testing.assert_close(found.points, torch.tensor([[5.5 + 4 * 0.3, 5.5 + 4 * 0.2]]))
