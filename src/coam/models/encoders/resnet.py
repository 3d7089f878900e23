"""ResNet-34 and ResNet-50 with torchvision's parameter names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.encoders.base import IMAGENET_MEAN, IMAGENET_STD, Encoder, initialise_convolutions

STEM_CHANNELS = 64
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width of each stage, and its number of blocks


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet-34)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, width, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(features)), inplace=True)
        out = self.bn2(self.conv2(out))
        shortcut = features if self.downsample is None else self.downsample(features)
        return F.relu(out + shortcut, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut (ResNet-50).

    torchvision strides in the 3x3 convolution, the original ResNet in the first 1x1. Both have the same names
    and shapes of parameters, so weights of one kind load silently, and wrongly, into the other.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, stride_on_first_conv: bool = False) -> None:
        super().__init__()
        outputs = width * self.expansion
        first, second = (stride, 1) if stride_on_first_conv else (1, stride)
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 4 width, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(features)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        shortcut = features if self.downsample is None else self.downsample(features)
        return F.relu(out + shortcut, inplace=True)


BlockBuilder = Callable[[int, int, int], nn.Module]  # from input channels, width and stride


class ResNetEncoder(Encoder):
    """Levels: the stem before pooling (64 channels), then the four stages; `levels` < 5 ends earlier."""

    def __init__(self, block: BlockBuilder, expansion: int, levels: int = 5) -> None:
        channels = (STEM_CHANNELS, *(width * expansion for width, _ in STAGES))
        super().__init__(channels, IMAGENET_MEAN, IMAGENET_STD, levels)
        self.classifier_prefixes = ("fc.", *(f"layer{stage}." for stage in range(levels, 5)))
        self.conv1 = nn.Conv2d(3, STEM_CHANNELS, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM_CHANNELS)
        for stage, (width, blocks) in enumerate(STAGES[: levels - 1], start=1):
            first = block(channels[stage - 1], width, 1 if stage == 1 else 2)
            others = (block(width * expansion, width, 1) for _ in range(blocks - 1))
            self.add_module(f"layer{stage}", nn.Sequential(first, *others))
        initialise_convolutions(self)

    def pyramid(self, normalised: Tensor, levels: int) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> maps (B, C_l, H / s_l, W / s_l), one per level."""
        stem = F.relu(self.bn1(self.conv1(normalised)), inplace=True)
        maps = [stem]
        features = F.max_pool2d(stem, 3, 2, 1)
        for stage in range(1, levels):
            features = getattr(self, f"layer{stage}")(features)
            maps.append(features)
        return tuple(maps)


class ResNet34Encoder(ResNetEncoder):
    """Levels of 64, 64, 128, 256 and 512 channels."""

    public_url = "https://download.pytorch.org/models/resnet34-b627a593.pth"

    def __init__(self, levels: int = 5) -> None:
        super().__init__(BasicBlock, BasicBlock.expansion, levels)


class ResNet50Encoder(ResNetEncoder):
    """Levels of 64, 256, 512, 1024 and 2048 channels; `stride_on_first_conv` as in the original ResNet."""

    def __init__(self, stride_on_first_conv: bool = False, levels: int = 5) -> None:
        block = partial(Bottleneck, stride_on_first_conv=stride_on_first_conv)
        super().__init__(block, Bottleneck.expansion, levels)
        if not stride_on_first_conv:  # torchvision publishes none for the original kind
            self.public_url = "https://download.pytorch.org/models/resnet50-0676ba61.pth"
