"""Photometric augmentation: random change of light, weather, camera and file, one for each picture.

Every change is computed for the whole batch and blended in per picture, so there is no branch and no
synchronisation. The order follows a photo's life: the scene's light, then lens, sensor and file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.data.sample import Draw
from coam.tensors import constant

GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class PhotometricConfig:
    """How often each change happens (a probability) when the strength is 1."""

    tone: float = 0.9  # gamma, exposure, contrast
    cast: float = 0.6  # colour of the light
    saturation: float = 0.5
    grey: float = 0.08
    local_light: float = 0.5  # a smooth field of light and shade
    shadow: float = 0.3  # a hard-edged shadow
    night: float = 0.18  # dark blue, lamps, little colour
    haze: float = 0.1  # fog, snow glare
    other_sensor: float = 0.08  # thermal-like: any curve of the grey value, also inverted
    blur: float = 0.25
    noise: float = 0.4
    jpeg: float = 0.3


def change_light(
    images: Tensor, strength: Tensor, generator: torch.Generator, config: PhotometricConfig | None = None
) -> Tensor:
    """Pictures (B, 3, H, W) in [0, 1] under other light.

    strength (B,) in [0, 1] scales how often and how much each is changed; 0 changes nothing.
    """
    config = config or PhotometricConfig()
    draw = Draw(generator, len(images))
    amount = strength.view(-1, 1, 1, 1)

    def sometimes(share: float, changed: Tensor, images: Tensor) -> Tensor:
        chosen = draw.uniform(0.0, 1.0).view(-1, 1, 1, 1) < share * amount
        return torch.where(chosen, changed, images)

    images = sometimes(config.local_light, _local_light(images, draw), images)
    images = sometimes(config.shadow, _shadow(images, draw), images)
    images = sometimes(config.night, _night(images, draw), images)
    images = sometimes(config.haze, _haze(images, draw), images)
    images = sometimes(config.tone, _tone(images, draw, amount), images)
    images = sometimes(config.cast, images * torch.exp(draw.normal(3, 1, 1) * 0.18 * amount), images)
    images = sometimes(config.saturation, _saturate(images, draw.uniform(0.0, 1.8, 1, 1, 1)), images)
    images = sometimes(config.grey, _grey(images), images)
    images = sometimes(config.other_sensor, _other_sensor(images, draw), images)
    images = images.clamp(0.0, 1.0)
    images = sometimes(config.blur, _blur(images, draw), images)
    images = sometimes(
        config.noise, images + draw.normal(*images.shape[1:]) * draw.uniform(0, 0.06, 1, 1, 1), images
    )
    images = images.clamp(0.0, 1.0)
    return sometimes(config.jpeg, _jpeg(images, draw), images).clamp(0.0, 1.0)


def _rgb(images: Tensor, values: tuple[float, float, float]) -> Tensor:
    return constant(values, images.device).view(1, 3, 1, 1)


def _grey(images: Tensor) -> Tensor:
    weights = _rgb(images, GREY)
    return (images * weights).sum(dim=1, keepdim=True).expand_as(images)


def _saturate(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_grey(images), images, factor)


def _tone(images: Tensor, draw: Draw, amount: Tensor) -> Tensor:
    gamma = torch.exp(draw.normal(1, 1, 1) * 0.35 * amount)
    exposure = torch.exp(draw.normal(1, 1, 1) * 0.3 * amount)
    contrast = torch.exp(draw.normal(1, 1, 1) * 0.3 * amount)
    toned = images.clamp(1e-4, 1.0).pow(gamma) * exposure
    mean = toned.mean(dim=(1, 2, 3), keepdim=True)
    return ((toned - mean) * contrast + mean).clamp(0.0, 1.0)


def _smooth_field(draw: Draw, channels: int, knots: int, size: torch.Size) -> Tensor:
    """Standard normal at the knots, smooth between them, (B, channels, H, W)."""
    return F.interpolate(draw.normal(channels, knots, knots), size=size, mode="bicubic", align_corners=False)


def _local_light(images: Tensor, draw: Draw) -> Tensor:
    field = _smooth_field(draw, 1, 4, images.shape[-2:]) * draw.uniform(0.2, 0.8, 1, 1, 1)
    return (images * torch.exp(field)).clamp(0.0, 1.0)


def _positions(images: Tensor) -> tuple[Tensor, Tensor]:
    """x (1, W) and y (H, 1) in [-1, 1]."""
    height, width = images.shape[-2:]
    x = torch.linspace(-1, 1, width, device=images.device)
    y = torch.linspace(-1, 1, height, device=images.device)
    return x.unsqueeze(0), y.unsqueeze(1)


def _shadow(images: Tensor, draw: Draw) -> Tensor:
    """A strip between two parallel lines gets darker and bluer."""
    x, y = _positions(images)
    angle = draw.uniform(0.0, 6.2832, 1, 1, 1)
    distance = x * angle.cos() + y * angle.sin() - draw.uniform(-0.6, 0.6, 1, 1, 1)
    sharpness = draw.uniform(8.0, 80.0, 1, 1, 1)
    width = draw.uniform(0.2, 1.2, 1, 1, 1)
    inside = torch.sigmoid(distance * sharpness) * torch.sigmoid((width - distance) * sharpness)
    dark = draw.uniform(0.25, 0.7, 1, 1, 1) * _rgb(images, (0.95, 1.0, 1.08))
    return images * torch.lerp(torch.ones_like(images), dark.expand_as(images), inside)


def _night(images: Tensor, draw: Draw) -> Tensor:
    """Little light from the sky, a few lamps that light what is near them, colours fade in the dark."""
    x, y = _positions(images)
    dim = _saturate(images, draw.uniform(0.1, 0.6, 1, 1, 1)).pow(draw.uniform(1.2, 2.2, 1, 1, 1))
    sky = draw.uniform(0.06, 0.35, 1, 1, 1) * _rgb(images, (0.75, 0.9, 1.25))
    light = dim * sky
    for _ in range(3):
        cx, cy = draw.uniform(-1, 1, 1, 1, 1), draw.uniform(-1, 1, 1, 1, 1)
        near = torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / draw.uniform(0.02, 0.5, 1, 1, 1))
        warm = torch.exp(draw.normal(3, 1, 1) * 0.15) * _rgb(images, (1.25, 1.0, 0.65))
        light = light + images * near * warm * draw.uniform(0.0, 1.1, 1, 1, 1)
        bulb = torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / draw.uniform(2e-4, 3e-3, 1, 1, 1))
        light = light + bulb * warm * draw.chance(0.5, 1, 1, 1)
    return (light + draw.normal(*images.shape[1:]) * draw.uniform(0.0, 0.04, 1, 1, 1)).clamp(0.0, 1.0)


def _haze(images: Tensor, draw: Draw) -> Tensor:
    """Contrast lost to a bright veil, more in some places than in others."""
    veil = draw.uniform(0.55, 0.98, 1, 1, 1) * torch.exp(draw.normal(3, 1, 1) * 0.03)
    depth = torch.sigmoid(_smooth_field(draw, 1, 3, images.shape[-2:]) + draw.uniform(-1.0, 1.2, 1, 1, 1))
    return torch.lerp(images, veil.expand_as(images), depth * 0.85)


def _other_sensor(images: Tensor, draw: Draw) -> Tensor:
    """Grey values through a random smooth curve that may fall as well as rise."""
    grey = _grey(images)
    curve = sum(
        draw.normal(1, 1, 1) / k * torch.sin(torch.pi * (k * grey + draw.uniform(0, 2, 1, 1, 1)))
        for k in (1, 2, 3)
    )
    assert isinstance(curve, Tensor)
    low, high = curve.amin(dim=(1, 2, 3), keepdim=True), curve.amax(dim=(1, 2, 3), keepdim=True)
    return (curve - low) / (high - low + 1e-3)


def _blur(images: Tensor, draw: Draw) -> Tensor:
    """Gaussian blur, one width per picture, up to two pixels."""
    radius = 4
    sigma = draw.uniform(0.4, 2.0, 1)
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = kernel / kernel.sum(dim=1, keepdim=True)
    batch, channels, height, width = images.shape
    stacked = images.reshape(1, batch * channels, height, width)
    weights = kernel.repeat_interleave(channels, dim=0)
    padded = F.pad(stacked, (radius, radius, radius, radius), mode="replicate")
    rows = F.conv2d(padded, weights[:, None, None, :], groups=batch * channels)
    both = F.conv2d(rows, weights[:, None, :, None], groups=batch * channels)
    return both.reshape(batch, channels, height, width)


def _jpeg(images: Tensor, draw: Draw) -> Tensor:
    """Rounding of 8x8 cosine coefficients, coarser for high frequencies: what JPEG does to a picture."""
    height, width = images.shape[-2:]
    k = torch.arange(8, device=images.device, dtype=torch.float32)
    basis = torch.cos((2 * k[None] + 1) * k[:, None] * torch.pi / 16) * 0.5
    basis[0] = basis[0] / 2**0.5
    padded = F.pad(images, (0, -width % 8, 0, -height % 8), mode="replicate")
    blocks = padded.unfold(2, 8, 8).unfold(3, 8, 8)
    coefficients = basis @ blocks @ basis.T
    step = draw.uniform(0.005, 0.06, 1, 1, 1, 1, 1) * (1 + k[:, None] + k[None, :])
    rounded = (coefficients / step).round() * step
    restored = (basis.T @ rounded @ basis).permute(0, 1, 2, 4, 3, 5)
    return restored.reshape(padded.shape)[..., :height, :width]
