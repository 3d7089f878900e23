"""The fused layers against plain torch operations, in Triton's interpreter or on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support.triton_interpreter import DEVICE, needs_kernel

pytest.importorskip("triton")

from coam.backends import cuda_graphs
from coam.kernels import fused
from coam.kernels.convolution import convolve, upsample_and_add
from coam.kernels.depthwise import DepthwiseConvolution, Stem, convolve_depthwise, stem
from coam.kernels.encoder import FusedEncoder
from coam.kernels.encoder import is_supported as takes_encoder
from coam.kernels.linear import (
    RELU,
    RELU6,
    LayerNorm,
    Linear,
    TileShape,
    linear,
    logistic_head,
    unit_linear,
)
from coam.kernels.stacked import FusedStacked
from coam.kernels.stacked import is_supported as takes_network
from coam.models.encoders.efficientnet import EfficientNetB1Encoder, EfficientNetLite1Encoder
from coam.models.folding import fold_batch_norm
from coam.models.outputs import EncodedImage
from coam.models.stacked import StackedCDUNet, StackedConfig
from support import plain_layers as plain


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def layer(inputs: int, outputs: int) -> Linear:
    return Linear(random(outputs, inputs, seed=1) / inputs**0.5, random(outputs, seed=2))


def assert_same(found: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


SMALL = TileShape(16, 16, 16)


@needs_kernel
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 8, 8), (37, 40, 24), (64, 16, 96)])
def test_linear(rows, inputs, outputs):
    x, weights, residual = random(rows, inputs), layer(inputs, outputs), random(rows, outputs, seed=3)
    for options in ({}, {"activation": RELU6}, {"residual": residual}):
        expected = plain.linear(x, weights, **options)
        assert_same(linear(x, weights, tiles=SMALL, **options), expected)
    assert_same(linear(x, weights), plain.linear(x, weights))  # default tiles


@needs_kernel
def test_layer_norm_before_a_linear_layer():
    x, weights = 3 * random(21, 24) + 1, layer(24, 40)
    norm = LayerNorm(random(24, seed=4), random(24, seed=5), 1e-5)
    assert_same(linear(x, weights, norm=norm), plain.linear(x, weights, norm=norm))


@needs_kernel
def test_rows_reduced():
    x, weights = random(70, 24), layer(24, 40)
    assert_same(unit_linear(x, weights), plain.unit_linear(x, weights))
    head = random(40, seed=6)
    assert_same(logistic_head(x, weights, head, 0.25), plain.logistic_head(x, weights, head, 0.25))
    nothing = Linear(torch.zeros_like(weights.weight), torch.zeros_like(weights.bias))
    assert unit_linear(x, nothing).abs().max() == 0  # no division by zero


@needs_kernel
@pytest.mark.parametrize(
    ("kernel", "stride", "before", "shape"),
    [(3, 1, 1, (2, 9, 11, 40)), (5, 1, 2, (1, 7, 4, 8)), (3, 2, 0, (1, 18, 6, 32)), (5, 2, 1, (2, 8, 20, 8))],
)
def test_filters_of_channels(kernel, stride, before, shape):
    filters = DepthwiseConvolution(
        random(kernel, kernel, shape[-1], seed=1), random(shape[-1], seed=2), stride, before
    )
    x = random(*shape)
    assert_same(convolve_depthwise(x, filters, RELU6), plain.convolve_depthwise(x, filters, RELU6))


@needs_kernel
@pytest.mark.parametrize("channels_last", [False, True])
def test_stem(channels_last):
    image = random(2, 3, 22, 14)
    if channels_last:
        image = image.contiguous(memory_format=torch.channels_last)
    weight = torch.cat([random(27, 24, seed=1), torch.zeros(5, 24, device=DEVICE)])
    weights = Stem(weight, random(24, seed=2), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 0)
    assert_same(stem(image, weights, RELU), plain.stem(image, weights, RELU), 1e-4)


@needs_kernel
def test_convolution():
    for shape, outputs in (((2, 5, 7, 24), 16), ((1, 1, 3, 8), 40)):
        x, weights = random(*shape), layer(9 * shape[-1], outputs)
        residual = random(*shape[:3], outputs, seed=3)
        found = convolve(x, weights, RELU, residual, SMALL)
        assert_same(found, plain.convolve(x, weights, RELU, residual))
        assert_same(convolve(x, weights), plain.convolve(x, weights))


@needs_kernel
def test_upsampling():
    coarse, lateral = random(2, 3, 5, 24), random(2, 6, 10, 24, seed=1)
    for activation in (RELU, RELU6):
        found = upsample_and_add(coarse, lateral, activation)
        assert_same(found, plain.upsample_and_add(coarse, lateral, activation))


def folded_encoder(levels: int) -> EfficientNetLite1Encoder:
    """With statistics as after training."""
    torch.manual_seed(0)
    encoder = EfficientNetLite1Encoder(levels).eval()
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2.0)
    return fold_batch_norm(encoder).to(DEVICE)


@needs_kernel
def test_encoder():
    encoder = folded_encoder(2)  # the stem, blocks with and without expansion, stride and residual
    assert takes_encoder(encoder)
    image = torch.rand(1, 3, 32, 32, device=DEVICE)
    for found, expected in zip(FusedEncoder(encoder)(image), encoder(image), strict=True):
        assert_same(found, expected, 1e-4)


def test_encoders_that_are_left_as_they_are():
    assert not takes_encoder(EfficientNetB1Encoder(1))  # SiLU, squeeze-and-excitation
    assert not takes_encoder(EfficientNetLite1Encoder(1))  # batch norm
    assert not takes_encoder(torch.nn.Identity())
    larger = folded_encoder(1)
    larger.features[0][0].weight.data.fill_(1.0)  # a kernel of 4 x 4, not one of 3 x 3 with padding in it
    assert not takes_encoder(larger)


SMALL_NETWORK = StackedConfig(
    width=64, heads=2, rounds=(1, 1), decoder_widths=(16, 16, 8), descriptor_channels=16, fine_channels=8
)


@needs_kernel
@pytest.mark.parametrize(
    ("size_a", "size_b", "options"),
    [
        ((64, 32), (64, 32), {}),
        ((60, 30), (60, 30), {}),
        ((32, 64), (20, 32), {}),
        ((32, 32), (32, 32), {"conditioning": False, "distinctiveness": False}),
    ],
)
def test_decoder(size_a, size_b, options):
    """Images of one size and of two, with and without padding: the same as the plain network."""
    torch.manual_seed(1)
    model = StackedCDUNet(replace(SMALL_NETWORK, **options))
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))  # biases are zero in a new network
    model = fold_batch_norm(model).to(DEVICE)
    assert takes_network(model)
    channels = (8, 16, 16, 64, 64)
    images = [
        EncodedImage(
            tuple(
                random(1, width, -(-size[0] // 32) * 32 >> level, -(-size[1] // 32) * 32 >> level, seed=level)
                for level, width in enumerate(channels, 1)
            ),
            size,
        )
        for size in (size_a, size_b)
    ]
    with torch.inference_mode():
        found = FusedStacked(model).decode(*images)
        expected = model.decode(*images)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.size == theirs.size
        for part in ("descriptors", "score", "fine"):
            assert getattr(ours, part).shape == getattr(theirs, part).shape
            assert_same(getattr(ours, part), getattr(theirs, part), 2e-4)


@needs_kernel
def test_network_in_half_precision(monkeypatch):
    """`GraphedNetwork` with fused kernels; first uses are not recorded as CUDA graphs."""
    monkeypatch.setattr(cuda_graphs, "fused_kernels", lambda device: fused)
    torch.manual_seed(2)
    model = StackedCDUNet(SMALL_NETWORK).eval().to(DEVICE)
    network = cuda_graphs.GraphedNetwork(model, torch.device(DEVICE))
    shapes = ((8, 32, 32), (16, 16, 16), (16, 8, 8), (64, 4, 4), (64, 2, 2))
    levels = [random(1, *shape).half() for shape in shapes]
    image = EncodedImage(tuple(levels), (64, 64))
    with torch.inference_mode():
        found = network.decode(image, image)
        expected = network.model.decode(image, image)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.fine.dtype == ours.descriptors.dtype == torch.float16
        assert_same(ours.descriptors, theirs.descriptors, 5e-3)
        assert_same(ours.fine, theirs.fine, 2e-2)
