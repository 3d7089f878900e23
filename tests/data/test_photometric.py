"""Change of light: its range, its limits and its repeatability."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from coam.data.photometric import PhotometricConfig, _blur, _jpeg, change_light
from coam.data.sample import Draw

NAMES = [f.name for f in fields(PhotometricConfig)]


def pictures(batch: int = 4, height: int = 36, width: int = 44) -> Tensor:
    return torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(0))


def changed(
    images: Tensor, strength: float, seed: int = 0, config: PhotometricConfig | None = None
) -> Tensor:
    amount = torch.full((len(images),), strength)
    return change_light(images, amount, torch.Generator().manual_seed(seed), config)


def only(name: str) -> PhotometricConfig:
    return PhotometricConfig(**{other: 1.1 if other == name else 0.0 for other in NAMES})


@pytest.mark.parametrize("seed", range(5))
def test_range_and_shape(seed: int) -> None:
    images = pictures()
    result = changed(images, 1.0, seed)
    assert result.shape == images.shape
    assert torch.isfinite(result).all()
    assert result.min() >= 0
    assert result.max() <= 1


def test_strength_zero_changes_nothing() -> None:
    images = pictures()
    assert torch.equal(changed(images, 0.0), images)


def test_strength_is_taken_picture_by_picture() -> None:
    images = pictures()
    result = change_light(images, torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.Generator().manual_seed(1))
    same = (result == images).flatten(1).all(dim=1)
    assert same[0]
    assert same[2]
    assert not same[1]


def test_one_seed_one_result() -> None:
    images = pictures()
    assert torch.equal(changed(images, 1.0, 3), changed(images, 1.0, 3))
    assert not torch.equal(changed(images, 1.0, 3), changed(images, 1.0, 4))


@pytest.mark.parametrize("name", NAMES)
def test_every_change_alone_changes_the_picture_and_stays_in_range(name: str) -> None:
    images = pictures()
    result = changed(images, 1.0, 2, only(name))
    assert (result - images).abs().mean() > 1e-3
    assert result.min() >= 0
    assert result.max() <= 1


def test_grey_is_grey_and_night_is_dark() -> None:
    images = pictures()
    grey = changed(images, 1.0, 0, only("grey"))
    assert torch.allclose(grey[:, 0], grey[:, 2], atol=1e-6)
    expected = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    assert torch.allclose(grey[:, 1], expected, atol=1e-5)
    bright = torch.full((16, 3, 32, 32), 0.7)
    assert changed(bright, 1.0, 0, only("night")).mean() < 0.45


def test_blur_keeps_constants_and_the_sum_of_a_dot() -> None:
    draw = Draw(torch.Generator().manual_seed(0), 2)
    flat = torch.full((2, 3, 20, 24), 0.3)
    assert torch.allclose(_blur(flat, draw), flat, atol=1e-6)
    dot = torch.zeros(2, 3, 21, 21)
    dot[:, :, 10, 10] = 1.0
    spread = _blur(dot, draw)
    assert torch.allclose(spread.sum(dim=(2, 3)), torch.ones(2, 3), atol=1e-5)
    assert torch.allclose(spread, spread.flip(-1), atol=1e-6)
    assert (spread[:, :, 10, 10] < 0.99).all()


def test_jpeg_is_a_small_change_of_pictures_of_any_size() -> None:
    draw = Draw(torch.Generator().manual_seed(0), 1)
    y, x = np.mgrid[0:21, 0:35] / 40
    ramp = torch.from_numpy(np.stack([x, y, x * y])).float().unsqueeze(0)
    result = _jpeg(ramp, draw)
    assert result.shape == ramp.shape
    assert 0 < (result - ramp).abs().mean() < 0.05


def test_blur_spreads_a_dot_alike_along_both_axes() -> None:
    dot = torch.zeros(1, 3, 21, 21)
    dot[..., 10, 10] = 1
    blurred = _blur(dot, Draw(torch.Generator().manual_seed(0), 1))[0, 0]
    torch.testing.assert_close(blurred, blurred.T)
    offsets = torch.arange(21.0) - 10
    across, down = (blurred.sum(dim) @ offsets**2 for dim in (0, 1))
    assert across.item() == pytest.approx(down.item())
    assert 0.1 < across.item() < 4.0  # the variance of a Gaussian of 0.4 to 2 pixels
