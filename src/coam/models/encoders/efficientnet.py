"""EfficientNet-B1 (torchvision's parameter names) and EfficientNet-Lite1 (the same names, see `lite1_name`).

Lite1 differs from B1 in four ways: ReLU6 instead of SiLU, no squeeze-and-excitation, a first and last stage
that are not deepened, and TensorFlow's SAME padding, which for stride 2 on an even size pads one pixel less
at the top and left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.encoders.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Encoder,
    Triple,
    initialise_convolutions,
)


@dataclass(frozen=True)
class Stage:
    """A run of blocks; the first one changes stride and channels."""

    expansion: int
    kernel: int
    stride: int
    channels: int
    blocks: int


@dataclass(frozen=True)
class Variant:
    """What differs between the family members."""

    stages: tuple[Stage, ...]
    activation: type[nn.Module] = nn.SiLU
    squeeze: bool = True
    tensorflow_padding: bool = False
    norm_eps: float = 1e-5
    norm_momentum: float = 0.1
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD


def _stages(blocks: tuple[int, ...]) -> tuple[Stage, ...]:
    shapes = (
        (1, 3, 1, 16),
        (6, 3, 2, 24),
        (6, 5, 2, 40),
        (6, 3, 2, 80),
        (6, 5, 1, 112),
        (6, 5, 2, 192),
        (6, 3, 1, 320),
    )
    return tuple(Stage(*shape, blocks=count) for shape, count in zip(shapes, blocks, strict=True))


B1 = Variant(_stages((2, 3, 3, 4, 4, 5, 2)))
LITE1 = Variant(
    stages=_stages((1, 3, 3, 4, 4, 5, 1)),
    activation=nn.ReLU6,
    squeeze=False,
    tensorflow_padding=True,
    norm_eps=1e-3,
    norm_momentum=0.01,
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,
)

STEM_CHANNELS = 32
# features.N whose output is a pyramid level: the last one at strides 2, 4, 8, 16, 32.
LEVEL_STAGES = (1, 2, 3, 5, 7)


class SameStride2Conv(nn.Conv2d):
    """Stride-2 convolution of an even-sized map with TensorFlow's padding: the odd pixel right and below."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W), H and W even -> (B, D, H / 2, W / 2)."""
        total = self.kernel_size[0] - 2
        before, after = total // 2, total - total // 2
        return super().forward(F.pad(input, (before, after, before, after)))


def conv_norm(
    variant: Variant,
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activate: bool = True,
) -> nn.Sequential:
    """Convolution, batch norm and, unless `activate` is off, the activation; as 0, 1, 2 like torchvision."""
    if stride == 2 and variant.tensorflow_padding:
        conv: nn.Conv2d = SameStride2Conv(inputs, outputs, kernel, stride, 0, groups=groups, bias=False)
    else:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(outputs, variant.norm_eps, variant.norm_momentum)]
    if activate:
        layers.append(variant.activation(inplace=True))
    return nn.Sequential(*layers)


class SqueezeExcitation(nn.Module):
    """Channels weighted by what their means say."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        mean = features.mean((2, 3), keepdim=True)
        weights: Tensor = self.fc2(F.silu(self.fc1(mean))).sigmoid()
        return features * weights


class InvertedResidual(nn.Module):
    """Expand (1x1), filter each channel (depthwise), squeeze-and-excite (B1 only), project (1x1)."""

    def __init__(self, variant: Variant, stage: Stage, inputs: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * stage.expansion
        layers: list[nn.Module] = []
        if stage.expansion != 1:
            layers.append(conv_norm(variant, inputs, hidden))
        layers.append(conv_norm(variant, hidden, hidden, stage.kernel, stride, groups=hidden))
        if variant.squeeze:
            layers.append(SqueezeExcitation(hidden, max(1, inputs // 4)))
        layers.append(conv_norm(variant, hidden, stage.channels, activate=False))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == stage.channels

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, H / stride, W / stride)."""
        out: Tensor = self.block(features)
        return out.add_(features) if self.residual else out  # nothing needs `out` as it was


class EfficientNetEncoder(Encoder):
    """EfficientNet without its 1280-channel head: levels of 16, 24, 40, 112 and 320 channels.

    With `levels` < 5 the deeper stages are left out.
    """

    def __init__(self, variant: Variant, levels: int = 5) -> None:
        channels = tuple(variant.stages[index - 1].channels for index in LEVEL_STAGES)
        super().__init__(channels, variant.mean, variant.std, levels)
        last = LEVEL_STAGES[levels - 1]
        self.classifier_prefixes = ("classifier.", *(f"features.{index}." for index in range(last + 1, 9)))
        layers = [conv_norm(variant, 3, STEM_CHANNELS, kernel=3, stride=2)]
        inputs = STEM_CHANNELS
        for stage in variant.stages[:last]:
            first = InvertedResidual(variant, stage, inputs, stage.stride)
            others = (InvertedResidual(variant, stage, stage.channels, 1) for _ in range(stage.blocks - 1))
            layers.append(nn.Sequential(first, *others))
            inputs = stage.channels
        self.features = nn.Sequential(*layers)
        initialise_convolutions(self)

    def pyramid(self, normalised: Tensor, levels: int) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> maps (B, C_l, H / s_l, W / s_l), one per level."""
        maps = []
        features = normalised
        for index in range(LEVEL_STAGES[levels - 1] + 1):
            features = self.features[index](features)
            if index in LEVEL_STAGES:
                maps.append(features)
        return tuple(maps)


class EfficientNetB1Encoder(EfficientNetEncoder):
    """EfficientNet-B1 as torchvision has it."""

    public_url = "https://download.pytorch.org/models/efficientnet_b1_rwightman-bac287d4.pth"

    def __init__(self, levels: int = 5) -> None:
        super().__init__(B1, levels)


class EfficientNetLite1Encoder(EfficientNetEncoder):
    """EfficientNet-Lite1; reads files with its own names and with those of `efficientnet_lite_pytorch`."""

    def __init__(self, levels: int = 5) -> None:
        super().__init__(LITE1, levels)

    def with_own_names(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors under this encoder's names; head and classifier left out."""
        if "_conv_stem.weight" not in state:
            return super().with_own_names(state)
        renamed = {lite1_name(name): value for name, value in state.items()}
        return super().with_own_names({name: value for name, value in renamed.items() if name is not None})


_LITE1_BLOCKS = [(stage, k) for stage, shape in enumerate(LITE1.stages, 1) for k in range(shape.blocks)]
_LITE1_PARTS = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")


def lite1_name(package_name: str) -> str | None:
    """Our name of a parameter of the package `efficientnet_lite_pytorch`; None for its head and classifier.

    `_conv_stem`, `_bn0` become `features.0.0`, `features.0.1`. The blocks, numbered through there, count per
    stage here: `_blocks.K.PART` becomes `features.STAGE.BLOCK.block.STEP.{0 convolution, 1 norm}` with the
    steps expand (`_expand_conv`, `_bn0`), filter (`_depthwise_conv`, `_bn1`) and project (`_project_conv`,
    `_bn2`). The very first block has no expand step, so its steps count from the filter.
    """
    stem = re.fullmatch(r"(_conv_stem|_bn0)\.(\w+)", package_name)
    if stem:
        return f"features.0.{('_conv_stem', '_bn0').index(stem[1])}.{stem[2]}"
    inner = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", package_name)
    if not inner or inner[2] not in _LITE1_PARTS:
        return None
    stage, block = _LITE1_BLOCKS[int(inner[1])]
    step, layer = divmod(_LITE1_PARTS.index(inner[2]), 2)
    if LITE1.stages[stage - 1].expansion == 1:
        step -= 1
    return f"features.{stage}.{block}.block.{step}.{layer}.{inner[3]}"
