"""Any convolutional model of the optional package timm as an encoder."""

from __future__ import annotations

from torch import Tensor

from coam.errors import ConfigError, MissingExtraError
from coam.models.encoders.base import IMAGENET_MEAN, IMAGENET_STD, PYRAMID_STRIDES, Encoder


class TimmEncoder(Encoder):
    """timm's feature extractor `model_name`; must give the five strides 2 ... 32.

    `pretrained` lets timm fetch its own weights.
    """

    foldable = False  # nothing is known about the order of its layers

    def __init__(self, model_name: str, pretrained: bool = False) -> None:
        try:
            import timm
        except (ImportError, RuntimeError) as error:  # a broken torchvision fails with RuntimeError
            raise MissingExtraError("timm", "timm") from error
        try:
            body = timm.create_model(model_name, pretrained=pretrained, features_only=True)
        except (RuntimeError, AttributeError, OSError) as error:
            reason = str(error).split("\n")[0]
            raise ConfigError(
                f"timm cannot build {model_name!r} ({reason}); see timm.list_models()"
            ) from None
        strides = tuple(body.feature_info.reduction())
        if strides != PYRAMID_STRIDES:
            raise ConfigError(f"timm:{model_name} has strides {strides}, not 2 ... 32; choose another")
        settings = body.pretrained_cfg
        super().__init__(
            tuple(body.feature_info.channels()),
            tuple(settings.get("mean", IMAGENET_MEAN)),
            tuple(settings.get("std", IMAGENET_STD)),
        )
        self.body = body

    def pyramid(self, normalised: Tensor, levels: int) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> maps (B, C_l, H / s_l, W / s_l), one per level; all are computed."""
        return tuple(self.body(normalised)[:levels])
