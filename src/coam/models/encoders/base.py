"""What every encoder has in common: a five-level pyramid, and preprocessing that travels with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coam.errors import ConfigError

PYRAMID_STRIDES = (2, 4, 8, 16, 32)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Triple = tuple[float, float, float]


class Encoder(nn.Module):
    """Image (B, 3, H, W) in [0, 1] -> five maps (B, C_l, H / s_l, W / s_l), s = 2 ... 32.

    H and W are multiples of 32. An encoder may be built with fewer `levels`, for networks that end earlier.
    """

    # Where torchvision publishes ImageNet weights; the hash is in the file name.
    public_url: str | None = None
    # Whether a batch norm among a module's children follows the convolution before it when the module runs
    foldable: bool = True
    # Entries of public checkpoints that are left out when loading: the classifier, and levels not built.
    classifier_prefixes: tuple[str, ...] = ()

    def __init__(self, channels: tuple[int, ...], mean: Triple, std: Triple, levels: int = 5) -> None:
        """`channels` of all five levels."""
        super().__init__()
        if not 1 <= levels <= len(PYRAMID_STRIDES):
            raise ConfigError(f"an encoder has 1 to {len(PYRAMID_STRIDES)} levels, not {levels}")
        self.channels = channels[:levels]
        # Not in the state dict: its names stay those of the public checkpoints.
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, image: Tensor, levels: int | None = None) -> tuple[Tensor, ...]:
        """Pyramid of an image (B, 3, H, W) with values in [0, 1]: the first `levels` of it, or all."""
        height, width = image.shape[-2:]
        if height % 32 or width % 32:
            raise ValueError(f"sides must be multiples of 32, got {height} x {width}: pad the image first")
        return self.pyramid((image - self.mean) / self.std, levels or len(self.channels))

    def pyramid(self, normalised: Tensor, levels: int) -> tuple[Tensor, ...]:
        """The first `levels` maps of an image (B, 3, H, W) that is already normalised."""
        raise NotImplementedError

    def with_own_names(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A public checkpoint's tensors under this encoder's names, the classifier left out."""
        return {name: value for name, value in state.items() if not name.startswith(self.classifier_prefixes)}


def initialise_convolutions(module: nn.Module) -> None:
    """He initialisation of every convolution, so that an encoder can be trained from nothing."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and not layer.weight.is_meta:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
