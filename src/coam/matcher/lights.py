"""Lights in which a photo may be shown, for where night or another sensor hides the scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coam.images import RGB

Light = Literal["as taken", "brightened", "equalised", "grey", "inverted"]


@dataclass(frozen=True)
class LightOptions:
    """How strongly a light differs from what was taken: usual values, not tuned."""

    gamma: float = 0.45  # exponent on values of 0 to 1: a tenth of white becomes a third of it
    clip_limit: float = 4.0  # times the mean count of a histogram's bin: limits noise (CLAHE)
    tiles: int = 8  # a side, each equalised by itself (CLAHE)


USUAL_LIGHTS = LightOptions()


def relight(rgb: RGB, light: Light, options: LightOptions) -> RGB:
    """A picture (h, w, 3) in another light; `as taken` is the picture itself.

    brightened: gamma; equalised: CLAHE of the lightness; grey: the same without colours; inverted: the same
    with dark and bright exchanged, as visible and thermal pictures often stand to each other.
    """
    return rgb if light == "as taken" else _LIGHTS[light](rgb, options)


def _brightened(rgb: RGB, options: LightOptions) -> RGB:
    values = 255 * (np.arange(256) / 255) ** options.gamma
    return np.asarray(values.round().astype(np.uint8)[rgb])


def _equalised(rgb: RGB, options: LightOptions) -> RGB:
    import cv2

    lab = cv2.cvtColor(rgb, cv2.COLOR_RGB2LAB)
    lab[..., 0] = _clahe(lab[..., 0], options)
    return np.asarray(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB), dtype=np.uint8)


def _grey(rgb: RGB, options: LightOptions) -> RGB:
    import cv2

    lightness = _clahe(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), options)
    return np.repeat(lightness[..., None], 3, axis=2)


def _inverted(rgb: RGB, options: LightOptions) -> RGB:
    return np.asarray(255 - _grey(rgb, options), dtype=np.uint8)


def _clahe(channel: np.ndarray, options: LightOptions) -> np.ndarray:
    import cv2

    return np.asarray(cv2.createCLAHE(options.clip_limit, (options.tiles, options.tiles)).apply(channel))


_LIGHTS: dict[str, Callable[[RGB, LightOptions], RGB]] = {
    "brightened": _brightened,
    "equalised": _equalised,
    "grey": _grey,
    "inverted": _inverted,
}
