"""Would 8-bit integers make the default network faster on this CPU? The same layers in bfloat16 and in int8.

    python -m benchmarks.int8 [--rounds 5]

Layers of decoder, encoder and attention with the shapes of a photo of 800 x 608 pixels, by torch's oneDNN,
with their activation taken by it in both (`coam.backends.fused_layers`). In int8 inputs are integers already
and outputs are again, scales are known before: the conversions around them come on top. Processor seconds of
one thread, fastest of all rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coam.backends.fused_layers import FusedLayer

# Name, channels in and out, kernel, groups, (height, width), photos at once
Shape = tuple[str, int, int, int, int, tuple[int, int], int]
CONVOLUTIONS: tuple[Shape, ...] = (
    ("decoder, 3x3, stride 2, both photos", 48, 48, 3, 1, (304, 400), 2),
    ("decoder, 3x3, stride 4, both photos", 96, 96, 3, 1, (152, 200), 2),
    ("decoder, 3x3, stride 8, both photos", 128, 128, 3, 1, (76, 100), 2),
    ("encoder, 1x1, stride 2", 16, 96, 1, 1, (304, 400), 1),
    ("encoder, 1x1, stride 4", 24, 144, 1, 1, (152, 200), 1),
    ("encoder, depthwise 3x3, stride 4", 144, 144, 3, 144, (152, 200), 1),
    ("encoder, depthwise 5x5, stride 8", 240, 240, 5, 240, (76, 100), 1),
    ("encoder, 1x1, stride 16", 112, 672, 1, 1, (38, 50), 1),
)
LINEAR = (("attention, 192 to 192, both photos", 192, 192), ("attention, 192 to 384, both photos", 192, 384))
TOKENS = 3800


def fastest(action: Callable[[], Any], rounds: int) -> float:
    """Processor milliseconds of an action."""
    action()
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(10):
            action()
        best = min(best, (time.process_time() - start) / 10)
    return 1000 * best


def quantised_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers and a scale for each output channel."""
    scale = weight.float().abs().flatten(1).amax(dim=1) / 127
    shape = (-1, *[1] * (weight.ndim - 1))
    return (weight.float() / scale.view(shape)).round().to(torch.int8), scale


def convolution(shape: Shape, rounds: int) -> tuple[float, float]:
    """Milliseconds in bfloat16 and in int8."""
    _, inputs, outputs, kernel, groups, size, photos = shape
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)
    features = torch.rand(photos, inputs, *size).contiguous(memory_format=torch.channels_last)
    half = FusedLayer(layer.bfloat16().to(memory_format=torch.channels_last), nn.ReLU())
    in_half = features.bfloat16()
    weight, scale = quantised_weight(layer.weight)
    stride, padding, dilation = ([side] * 2 for side in (1, kernel // 2, 1))
    packed = torch.ops.onednn.qconv_prepack(
        weight, scale, 1 / 255, 0, stride, padding, dilation, groups, list(features.shape)
    )
    integers, zeros = (255 * features).round().to(torch.uint8), torch.zeros(outputs, dtype=torch.int32)
    bias = layer.bias.float() if layer.bias is not None else None
    how = (stride, padding, dilation, groups, 1 / 64, 0, torch.uint8, "relu", [], "")
    run = torch.ops.onednn.qconv2d_pointwise
    return fastest(lambda: half(in_half), rounds), fastest(
        lambda: run(integers, 1 / 255, 0, packed, scale, zeros, bias, *how), rounds
    )


def linear(inputs: int, outputs: int, rounds: int) -> tuple[float, float]:
    """Milliseconds in bfloat16 and in int8; the result is bfloat16 in both, as attention needs it."""
    layer = nn.Linear(inputs, outputs)
    tokens = torch.rand(TOKENS, inputs)
    weight, scale = quantised_weight(layer.weight)
    packed = torch.ops.onednn.qlinear_prepack(weight, list(tokens.shape))
    integers, zeros = (255 * tokens).round().to(torch.uint8), torch.zeros(outputs, dtype=torch.int32)
    bias = layer.bias.float()
    how = (1.0, 0, torch.bfloat16, "none", [], "")
    run = torch.ops.onednn.qlinear_pointwise
    half, in_half = layer.bfloat16(), tokens.bfloat16()
    return fastest(lambda: half(in_half), rounds), fastest(
        lambda: run(integers, 1 / 255, 0, packed, scale, zeros, bias, *how), rounds
    )


@torch.inference_mode()
def main() -> None:
    """Print one line a layer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("| layer | bfloat16 | int8 |\n|---|---|---|")
    for shape in CONVOLUTIONS:
        print("| {} | {:.2f} ms | {:.2f} ms |".format(shape[0], *convolution(shape, rounds)))
    for name, inputs, outputs in LINEAR:
        print("| {} | {:.2f} ms | {:.2f} ms |".format(name, *linear(inputs, outputs, rounds)))


if __name__ == "__main__":
    main()
