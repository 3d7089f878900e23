"""Masks: what is read as usable, and which pixel a point lies on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from coam.errors import ImageError
from coam.images.mask import load_mask, usable_at

USABLE = np.array([[True, False, True, True], [False, True, True, False], [True, True, False, False]])


@pytest.mark.parametrize(
    "source",
    [
        USABLE,
        USABLE.astype(np.uint8),
        USABLE * 0.01,
        USABLE[..., None] * -3,
        np.stack([USABLE, np.zeros_like(USABLE), np.zeros_like(USABLE)], axis=2),  # any channel
        torch.from_numpy(USABLE),
        torch.from_numpy(USABLE)[None],
        torch.from_numpy(USABLE)[None, None].float(),
        Image.fromarray(USABLE.astype(np.uint8) * 255),
    ],
    ids=range(9),
)
def test_whatever_is_not_zero_is_usable(source: Any) -> None:
    mask = load_mask(source, (4, 3))
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask, USABLE)


def test_files(tmp_path: Path) -> None:
    Image.fromarray(USABLE.astype(np.uint8)).save(tmp_path / "mask.png")  # 1 is not black either
    np.testing.assert_array_equal(load_mask(tmp_path / "mask.png", (4, 3)), USABLE)
    with pytest.raises(
        ImageError, match=r"mask\.png: is not of the size of its photo, but 4 x 3; make it 3 x 4"
    ):
        load_mask(tmp_path / "mask.png", (3, 4))
    with pytest.raises(ImageError, match=r"nowhere\.png: no such file"):
        load_mask(tmp_path / "nowhere.png", (3, 4))


def test_a_mask_that_is_no_picture_is_refused() -> None:
    with pytest.raises(ImageError, match="mask0: is not of the size"):
        load_mask(np.ones(4), (4, 1), "mask0")


def test_the_nearest_pixel_counts() -> None:
    points = np.array([[0.4, 0.0], [0.6, 0.0], [-5.0, 2.4], [3.4, 9.0], [2.0, 1.0]])
    expected = [True, False, True, False, True]
    assert usable_at(USABLE, points).tolist() == expected
    assert usable_at(torch.from_numpy(USABLE), torch.from_numpy(points)).tolist() == expected
