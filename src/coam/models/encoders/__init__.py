"""Encoders: image in, five-level feature pyramid out; built by name with `build_encoder`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from coam.errors import ConfigError
from coam.models.encoders.base import PYRAMID_STRIDES, Encoder
from coam.models.encoders.checkpoints import load_pretrained, public_weights
from coam.models.encoders.efficientnet import EfficientNetB1Encoder, EfficientNetLite1Encoder
from coam.models.encoders.resnet import ResNet34Encoder, ResNet50Encoder
from coam.models.encoders.timm_encoder import TimmEncoder

__all__ = ["ENCODERS", "PYRAMID_STRIDES", "Encoder", "build_encoder", "load_pretrained", "public_weights"]

ENCODERS: dict[str, Callable[..., Encoder]] = {
    "resnet34": ResNet34Encoder,
    "resnet50": ResNet50Encoder,
    "efficientnet_b1": EfficientNetB1Encoder,
    "efficientnet_lite1": EfficientNetLite1Encoder,
}


def build_encoder(name: str, **options: Any) -> Encoder:
    """A randomly initialised encoder: one of `ENCODERS`, or `timm:NAME` where the extra timm is installed.

    `resnet50` takes `stride_on_first_conv` (the original ResNet); `timm:NAME` takes `pretrained`.
    """
    if name.startswith("timm:"):
        factory: Callable[..., Encoder] = partial(TimmEncoder, name.removeprefix("timm:"))
    elif name in ENCODERS:
        factory = ENCODERS[name]
    else:
        raise ConfigError(f"there is no encoder {name!r}; choose one of {', '.join(ENCODERS)}, timm:NAME")
    known = list(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            takes = ", ".join(known) or "none"
            raise ConfigError(f"encoder {name} has no option {option!r}; it takes {takes}")
    return factory(**options)
