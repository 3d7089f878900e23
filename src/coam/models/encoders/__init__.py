"""Encoders: image in, five-level feature pyramid out; built by name with `build_encoder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coam.errors import ConfigError
from coam.models.encoders.base import PYRAMID_STRIDES, Encoder
from coam.models.encoders.checkpoints import load_pretrained
from coam.models.encoders.efficientnet import B1, EfficientNetEncoder, EfficientNetLite1Encoder

__all__ = ["ENCODERS", "PYRAMID_STRIDES", "Encoder", "build_encoder", "load_pretrained"]

ENCODERS: dict[str, Callable[..., Encoder]] = {
    "efficientnet_b1": lambda: EfficientNetEncoder(B1),
    "efficientnet_lite1": EfficientNetLite1Encoder,
}


def build_encoder(name: str, **options: Any) -> Encoder:
    """A randomly initialised encoder: one of `ENCODERS`."""
    if name not in ENCODERS:
        raise ConfigError(f"there is no encoder {name!r}; choose one of {', '.join(ENCODERS)} or timm:NAME")
    try:
        return ENCODERS[name](**options)
    except TypeError:
        raise ConfigError(f"encoder {name} does not take the options {', '.join(options)}; leave them out") from None
