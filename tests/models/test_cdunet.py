"""CD-UNet as published: its widths, its symmetry, its switches, images of any size, lower precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coam.errors import ConfigError
from coam.models.cdunet import CDUNet, CDUNetConfig
from coam.models.coattention import CoAttention
from coam.models.outputs import DenseDescriptors, EncodedImage
from support.small_networks import difference, picture, small_cdunet


@pytest.fixture(scope="module")
def net() -> CDUNet:
    return small_cdunet()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def check_shape_and_range(dense: DenseDescriptors, size: tuple[int, int], channels: int) -> None:
    assert dense.size == size
    assert dense.descriptors.shape[1:] == (channels, *size)
    assert dense.score.shape[1:] == (1, *size)
    assert difference(dense.descriptors.norm(dim=1), torch.ones(())) < 1e-5
    assert 0.0 <= float(dense.score.min()) <= float(dense.score.max()) <= 1.0


# ---- the published configuration


def conv_shapes(module: torch.nn.Module) -> list[tuple[int, ...]]:
    return [tuple(m.weight.shape) for m in module.modules() if isinstance(m, torch.nn.Conv2d)]


def test_published_widths() -> None:
    with torch.device("meta"):  # shapes only: nothing is allocated
        net = CDUNet(CDUNetConfig())
    assert net.encoder.channels == (64, 256, 512, 1024, 2048)
    # Stride 32 (2048) -> 256, stride 16 (1024) -> 128, query and context apart, with bias.
    for stride, channels, projected in (("32", 2048, 256), ("16", 1024, 128)):
        module = net.coattention[stride]
        assert isinstance(module, CoAttention)
        assert conv_shapes(module) == [(projected, channels, 1, 1)] * 2
        assert module.query.bias is not None
        assert module.context.bias is not None
        assert module.scale == 1.0
    # Each block: what came up from below + the encoder's level + what was attended -> two 3x3 convolutions.
    incoming = (2048 + 256, 256 + 1024 + 128, 256 + 512, 128 + 256, 128 + 64)
    for block, wide, width in zip(net.decoder, incoming, (256, 256, 128, 128, 64), strict=True):
        assert conv_shapes(block) == [(width, wide, 3, 3), (width, width, 3, 3)]
    assert conv_shapes(net.score) == [(64, 64, 1, 1), (1, 64, 1, 1), (1, 1, 1, 1)]
    assert not any(isinstance(m, torch.nn.ReLU) for m in net.score.modules())


def test_published_efficientnet_widths() -> None:
    with torch.device("meta"):
        net = CDUNet(CDUNetConfig(encoder="efficientnet_b1"))
    assert conv_shapes(net.coattention["32"]) == [(256, 320, 1, 1)] * 2
    assert conv_shapes(net.coattention["16"]) == [(128, 112, 1, 1)] * 2


def test_published_network_gives_64_channels_at_input_resolution() -> None:
    torch.manual_seed(0)
    net = CDUNet(CDUNetConfig()).eval()
    a, b = net(picture(32, 64), picture(64, 32, seed=1))
    check_shape_and_range(a, (32, 64), 64)
    check_shape_and_range(b, (64, 32), 64)
    assert net.capabilities.stride == a.stride == 1


# ---- two images


def test_swapped_inputs_give_swapped_outputs(net: CDUNet) -> None:
    a, b = picture(32, 64), picture(64, 32, seed=1)
    a_first, b_second = net(a, b)
    b_first, a_second = net(b, a)
    for one, two in ((a_first, a_second), (b_first, b_second)):
        assert torch.equal(one.descriptors, two.descriptors)
        assert torch.equal(one.score, two.score)


def test_descriptors_depend_on_the_other_image(net: CDUNet) -> None:
    a = picture(64, 64)
    first, second = (net(a, picture(64, 64, seed=s))[0] for s in (1, 2))
    assert difference(first.descriptors, second.descriptors) > 0.005
    assert difference(first.score, second.score) > 1e-3


def test_without_conditioning_they_do_not() -> None:
    net = small_cdunet(conditioning=False)
    a = picture(64, 64)
    first, second = (net(a, picture(64, 64, seed=s))[0] for s in (1, 2))
    assert torch.equal(first.descriptors, second.descriptors)
    assert torch.equal(first.score, second.score)
    assert net.attention_maps(net.encode(a), net.encode(a)) == {}
    assert not any("coattention" in name for name in net.state_dict())


def test_encode_and_decode_apart_equal_forward(net: CDUNet) -> None:
    a, b = picture(64, 32), picture(32, 96, seed=1)
    whole, parts = net(a, b), net.decode(net.encode(a), net.encode(b))
    for one, two in zip(whole, parts, strict=True):
        assert torch.equal(one.descriptors, two.descriptors)
        assert torch.equal(one.score, two.score)


def test_batch_equals_singles(net: CDUNet) -> None:
    a, b = picture(32, 64, batch=2), picture(64, 32, seed=1, batch=2)
    both = net(a, b)
    for i in range(2):
        single = net(a[i : i + 1], b[i : i + 1])
        for one, two in zip(both, single, strict=True):
            assert difference(one.descriptors[i], two.descriptors[0]) < 1e-4
            assert difference(one.score[i], two.score[0]) < 1e-4


# ---- images of any size


@pytest.mark.parametrize(
    ("size_a", "size_b"), [((1, 1), (17, 33)), ((97, 131), (64, 200)), ((33, 1), (5, 7))]
)
def test_odd_and_different_sizes(net: CDUNet, size_a: tuple[int, int], size_b: tuple[int, int]) -> None:
    a, b = net(picture(*size_a), picture(*size_b, seed=1))
    check_shape_and_range(a, size_a, 32)
    check_shape_and_range(b, size_b, 32)


def outside_changed(image: EncodedImage, level: int, rows: int, columns: int) -> EncodedImage:
    """The same features, but other ones in the cells of `level` beyond `rows` and `columns`."""
    levels = list(image.levels)
    changed = levels[level] + 50.0
    changed[..., :rows, :columns] = levels[level][..., :rows, :columns]
    levels[level] = changed
    return replace(image, levels=tuple(levels))


def test_padding_cannot_be_attended_to(net: CDUNet) -> None:
    """An image of 70 x 40, padded to 96 x 64, has 2 x 1 cells of 32 and 4 x 2 cells of 16."""
    a, b = net.encode(picture(64, 64)), net.encode(picture(70, 40, seed=1))
    assert [tuple(level.shape[-2:]) for level in b.levels[3:]] == [(6, 4), (3, 2)]
    before = net.decode(a, b)[0].descriptors
    for level, rows, columns in ((4, 2, 1), (3, 4, 2)):
        after = net.decode(a, outside_changed(b, level, rows, columns))[0].descriptors
        assert torch.equal(before, after)
        inside = net.decode(a, outside_changed(b, level, rows - 1, columns))[0].descriptors
        assert difference(before, inside) > 1e-4  # one row less is seen: the test can fail


# ---- switches


def test_raw_values_widen_the_decoder() -> None:
    raw = small_cdunet(attention_value="raw")
    convolution = conv_shapes(raw.decoder[0])[0]
    assert convolution == (16, 512 + 512, 3, 3)  # the level itself and the raw features of the other image
    check_shape_and_range(raw(picture(32, 32), picture(32, 32, seed=1))[0], (32, 32), 32)


def test_attention_scale_is_applied() -> None:
    sharp, flat = small_cdunet(), small_cdunet(attention_scale=0.0)
    a, b = picture(64, 64), picture(64, 64, seed=1)
    uniform = flat.attention_maps(flat.encode(a), flat.encode(b))[16]
    assert difference(uniform, torch.full((), 1 / 16)) < 1e-7  # scale 0: all 4 x 4 places alike
    assert float(sharp.attention_maps(sharp.encode(a), sharp.encode(b))[16].max()) > 0.2


def test_unknown_encoder_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="resnet50"):
        CDUNet(CDUNetConfig(encoder="vgg99"))
