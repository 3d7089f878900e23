"""Every pixel convention against pictures whose pixels can be counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from coam.geometry.coordinates import (
    cell_centres,
    from_colmap,
    point_grid,
    resize_points,
    rotate_points,
    to_colmap,
    to_unit,
)
from coam.models.padding import pad_image

coordinate = st.floats(-1000, 1000, width=32)


def test_resize_by_hand() -> None:
    """Doubling: the old pixel 0 becomes the new pixels 0 and 1, whose middle is 0.5."""
    points = np.array([[0.0, 0.0], [3.0, 1.0]])
    np.testing.assert_allclose(resize_points(points, (2.0, 4.0)), [[0.5, 1.5], [6.5, 5.5]])


@pytest.mark.parametrize(("width", "height"), [(20, 12), (7, 31), (64, 64)])
def test_resize_agrees_with_interpolation(width: int, height: int) -> None:
    """A ramp whose value IS the coordinate, resized by torch, must hold the mapped-back coordinate."""
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(20.0), indexing="ij")
    resized = F.interpolate(torch.stack([x, y])[None], (height, width), mode="bilinear", align_corners=False)[
        0
    ]
    pixels = cell_centres(width, height, 1)
    back = resize_points(pixels, (20 / width, 12 / height)).view(height, width, 2)
    inside = (
        (back >= 0).all(-1) & (back[..., 0] <= 19) & (back[..., 1] <= 11)
    )  # elsewhere the border is repeated
    assert inside.float().mean() > 0.7
    assert (resized.permute(1, 2, 0) - back)[inside].abs().max() < 1e-3


@given(coordinate, coordinate, st.floats(0.05, 20), st.floats(0.05, 20))
def test_resize_and_back(x: float, y: float, scale_x: float, scale_y: float) -> None:
    points = np.array([[x, y]], dtype=np.float64)
    there = resize_points(points, (scale_x, scale_y))
    np.testing.assert_allclose(resize_points(there, (1 / scale_x, 1 / scale_y)), points, atol=1e-9, rtol=1e-9)


def test_arrays_and_tensors_agree_and_keep_their_type() -> None:
    points = np.random.default_rng(0).uniform(0, 100, (5, 2))
    for dtype in (np.float32, np.float64):
        array = resize_points(points.astype(dtype), (0.3, 1.7))
        tensor = resize_points(torch.from_numpy(points.astype(dtype)), (0.3, 1.7))
        assert array.dtype == dtype
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-6)


def test_colmap_has_its_origin_in_the_corner() -> None:
    np.testing.assert_array_equal(to_colmap(np.array([[0.0, 2.0]])), [[0.5, 2.5]])
    np.testing.assert_array_equal(from_colmap(to_colmap(np.array([[1.25, -3.0]]))), [[1.25, -3.0]])


def test_unit_coordinates_read_the_right_pixel() -> None:
    image = torch.arange(5 * 7.0).view(1, 1, 5, 7)
    points = torch.tensor([[0.0, 0.0], [6.0, 4.0], [2.0, 3.0], [2.5, 3.0]])
    read = F.grid_sample(image, to_unit(points, 7, 5).view(1, 1, -1, 2), align_corners=False).flatten()
    torch.testing.assert_close(read, torch.tensor([0.0, 34.0, 23.0, 23.5]))
    torch.testing.assert_close(to_unit(torch.tensor([[-0.5, 4.5]]), 7, 5), torch.tensor([[-1.0, 1.0]]))


@pytest.mark.parametrize("turns", [-3, -2, -1, 0, 1, 2, 3, 4, 5])
def test_turned_points_are_where_the_turned_picture_has_them(turns: int) -> None:
    image = np.arange(3 * 5).reshape(3, 5)
    turned = np.rot90(image, turns)
    assert np.array_equal(turned, torch.rot90(torch.from_numpy(image), turns, dims=(-2, -1)).numpy())
    for y in range(3):
        for x in range(5):
            new_x, new_y = rotate_points(np.array([[x, y]]), turns, width=5, height=3)[0]
            assert turned[new_y, new_x] == image[y, x]


@given(coordinate, coordinate, st.integers(0, 3), st.integers(1, 50), st.integers(1, 50))
def test_turning_back(x: float, y: float, turns: int, width: int, height: int) -> None:
    points = torch.tensor([[x, y]], dtype=torch.float64)
    turned_size = (width, height) if turns % 2 == 0 else (height, width)
    back = rotate_points(rotate_points(points, turns, width, height), -turns, *turned_size)
    torch.testing.assert_close(back, points)


def test_cell_centres_by_hand() -> None:
    expected = [[1.5, 1.5], [5.5, 1.5], [9.5, 1.5], [1.5, 5.5], [5.5, 5.5], [9.5, 5.5]]
    assert cell_centres(3, 2, 4).tolist() == expected
    assert cell_centres(2, 1, 1).tolist() == [[0.0, 0.0], [1.0, 0.0]]
    # Cells of 4 x 2 pixels; the first spans pixel edges -0.5 .. 3.5 and -0.5 .. 1.5.
    expected = [[1.5, 0.5], [5.5, 0.5], [1.5, 2.5], [5.5, 2.5], [1.5, 4.5], [5.5, 4.5]]
    assert cell_centres(2, 3, (4.0, 2.0)).tolist() == expected
    assert cell_centres(5, 3, 1.0)[7].tolist() == [2.0, 1.0]


def test_cells_and_pooling_agree() -> None:
    """The mean of a coordinate ramp over a cell is the cell's centre, padded or not."""
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(40.0), indexing="ij")
    ramp = torch.stack([x, y])[None]
    pooled = F.avg_pool2d(pad_image(ramp, 32), 8)[0, :, :3, :5]
    torch.testing.assert_close(pooled.permute(1, 2, 0).reshape(-1, 2), cell_centres(5, 3, 8))


def test_a_grid_of_points_reaches_the_corners_row_by_row() -> None:
    assert point_grid((5, 3), 3).tolist() == [[x, y] for y in (0, 1, 2) for x in (0, 2, 4)]
