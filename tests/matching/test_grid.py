"""Sampling of feature maps, against numbers computed by hand."""

import pytest
import torch

from coam.geometry.coordinates import cell_centres
from coam.matching.grid import sample_map


def ramp(height: int, width: int, stride: float) -> torch.Tensor:
    """A map (1, 2, H, W) whose value in each cell is the pixel that the cell stands for."""
    return cell_centres(width, height, stride).view(height, width, 2).permute(2, 0, 1).unsqueeze(0)


@pytest.mark.parametrize("stride", [1.0, 2.0, 4.0, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sampling_reads_the_position_back(stride, dtype):
    feature_map = ramp(8, 16, stride).to(dtype)
    inside = torch.rand(1, 50, 2, generator=torch.Generator().manual_seed(0))
    inside = inside * torch.tensor([15.0, 7.0]) * stride + (stride - 1) / 2
    # These cell values are exact in bfloat16 up to 2^-8 of their size.
    tolerance = 0.2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(sample_map(feature_map, inside, stride), inside, atol=tolerance, rtol=0)


def test_sampling_keeps_sub_pixel_positions_with_half_precision_maps():
    """In bfloat16, grid_sample's own positions would be off by whole pixels at x = 900."""
    feature_map = torch.zeros(1, 1, 1, 1024, dtype=torch.bfloat16)
    feature_map[..., 901] = 1.0
    points = torch.tensor([[[900.25, 0.0], [900.75, 0.0], [901.0, 0.0]]])
    torch.testing.assert_close(sample_map(feature_map, points, 1.0)[0, :, 0], torch.tensor([0.25, 0.75, 1.0]))


def test_beyond_the_border_the_border_value_is_read():
    feature_map = ramp(4, 4, 2.0)
    points = torch.tensor([[[-3.0, -3.0], [0.0, 0.0], [30.0, 2.5]]])
    expected = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [6.5, 2.5]]])
    torch.testing.assert_close(sample_map(feature_map, points, 2.0), expected)


def test_normalise_gives_unit_length():
    feature_map = torch.nn.functional.normalize(torch.randn(2, 16, 6, 6), dim=1)
    points = cell_centres(9, 9, 12 / 9).expand(2, -1, -1)
    assert sample_map(feature_map, points, 2.0).norm(dim=-1).min() < 0.95
    lengths = sample_map(feature_map, points, 2.0, normalise=True).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(2, 81))


def test_grid_descriptors_equal_a_naive_interpolation():
    """The paper's G x G positions: four cells weighed by hand, then unit length again."""
    feature_map = torch.nn.functional.normalize(torch.randn(1, 8, 6, 10), dim=1)
    points = cell_centres(7, 5, 2.5).view(1, -1, 2)
    found = sample_map(feature_map, points, 2.0, normalise=True)[0]
    for point, descriptor in zip(points[0].tolist(), found, strict=True):
        column, row = ((value + 0.5) / 2.0 - 0.5 for value in point)
        expected = torch.zeros(8)
        for r in range(6):
            for c in range(10):
                weight = max(0.0, 1 - abs(row - r)) * max(0.0, 1 - abs(column - c))
                expected += weight * feature_map[0, :, r, c]
        if 0 <= column <= 9 and 0 <= row <= 5:  # beyond, the border's value is read
            torch.testing.assert_close(descriptor, expected / expected.norm())


def test_each_image_of_a_batch_has_its_own_points():
    feature_map = ramp(4, 4, 1.0).expand(2, -1, -1, -1)
    points = torch.tensor([[[1.0, 2.0]], [[2.5, 0.5]]])
    torch.testing.assert_close(sample_map(feature_map, points, 1.0), points)


def test_no_points():
    assert sample_map(torch.randn(1, 3, 4, 4), torch.zeros(1, 0, 2), 2.0, normalise=True).shape == (1, 0, 3)
