"""Where cells lie, and that padding holds no position."""

from __future__ import annotations

import pytest
import torch

from coam.geometry.coordinates import cell_centres
from coam.models.padding import cells_inside, crop_cells, pad_image, valid_cells


@pytest.mark.parametrize(
    ("length", "stride", "expected"),
    [
        (97, 1, 97),  # every pixel is a cell
        (64, 4, 16),  # a whole number of cells
        (97, 4, 24),  # centres 1.5, 5.5 ... 93.5 lie inside; 97.5 does not
        (98, 4, 24),  # the next centre, 97.5, is beyond the last pixel centre, 97
        (99, 4, 25),  # 97.5 <= 98
        (33, 32, 1),  # centres 15.5 and 47.5
        (48, 32, 1),  # 47.5 > 47
        (49, 32, 2),  # 47.5 <= 48
        (17, 16, 1),
        (25, 16, 2),  # 23.5 <= 24
        (131, 2, 65),  # centres 0.5 ... 128.5; 130.5 > 130
        (1, 32, 1),  # at least one, even where its centre lies outside
    ],
)
def test_cells_inside_by_hand(length: int, stride: int, expected: int) -> None:
    assert cells_inside(length, stride) == expected


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 32])
def test_cells_are_exactly_those_with_a_centre_in_the_image(stride: int) -> None:
    for length in range(1, 200):
        centres = cell_centres(-(-length // stride) + 1, 1, stride)[:, 0]
        assert cells_inside(length, stride) == max(1, int((centres <= length - 1).sum()))


def test_padding_repeats_the_border_on_the_right_and_below_only() -> None:
    image = torch.arange(3 * 5.0).view(1, 1, 3, 5)
    padded = pad_image(image, multiple=4)
    assert padded.shape == (1, 1, 4, 8)
    assert torch.equal(padded[..., :3, :5], image)
    assert torch.equal(padded[0, 0, 3], torch.tensor([10.0, 11, 12, 13, 14, 14, 14, 14]))
    assert torch.equal(padded[0, 0, 0], torch.tensor([0.0, 1, 2, 3, 4, 4, 4, 4]))


def test_a_multiple_is_not_copied() -> None:
    image = torch.rand(1, 3, 32, 64)
    assert pad_image(image) is image


def test_one_pixel_becomes_a_whole_tile() -> None:
    padded = pad_image(torch.full((2, 3, 1, 1), 0.25))
    assert padded.shape == (2, 3, 32, 32)
    assert float(padded.min()) == float(padded.max()) == 0.25


def test_mask_and_crop_agree() -> None:
    feature_map = torch.arange(6 * 10.0).view(1, 1, 6, 10)  # stride 16 of an image padded to 96 x 160
    size = (
        81,
        131,
    )  # rows: centres 7.5 ... 71.5 inside, 87.5 > 80: 5; columns: ... 119.5 inside, 135.5 not: 8
    cropped = crop_cells(feature_map, size, 16)
    assert cropped.shape == (1, 1, 5, 8)
    mask = valid_cells(feature_map, size, 16)
    assert mask is not None
    assert mask.shape == (60,)
    assert torch.equal(feature_map.flatten()[mask], cropped.flatten())
    assert valid_cells(feature_map, (96, 160), 16) is None
