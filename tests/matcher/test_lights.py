"""Lights in which photos are shown."""

from __future__ import annotations

import numpy as np

from coam.matcher.lights import LightOptions, relight

OPTIONS = LightOptions()
NIGHT = np.random.default_rng(0).integers(0, 40, (64, 96, 3), dtype=np.uint8)


def test_as_taken_is_the_picture_itself() -> None:
    assert relight(NIGHT, "as taken", OPTIONS) is NIGHT


def test_gamma_by_hand() -> None:
    """255 * sqrt(v / 255): 0, 1, 64 and 255 become 0, 16, 128 and 255."""
    values = np.array([0, 1, 64, 255], np.uint8)[None, :, None].repeat(3, axis=2)
    brighter = relight(values, "brightened", LightOptions(gamma=0.5))
    np.testing.assert_array_equal(brighter[0, :, 0], [0, 16, 128, 255])


def test_equalised_night_has_contrast_and_keeps_its_hue() -> None:
    waves = 12 + 10 * np.sin(np.arange(512) / 9)[None] * np.cos(np.arange(384) / 7)[:, None]
    night = (waves[..., None] * [1.0, 0.5, 0.5]).round().astype(np.uint8)
    day = relight(night, "equalised", OPTIONS)
    assert day.std() > 2 * night.std()
    assert (day[..., 0].astype(int) >= day[..., 2]).mean() > 0.9  # still reddish


def test_grey_has_no_colour_and_inverted_is_its_negative() -> None:
    grey = relight(NIGHT, "grey", OPTIONS)
    assert (grey == grey[..., :1]).all()
    np.testing.assert_array_equal(relight(NIGHT, "inverted", OPTIONS), 255 - grey)
