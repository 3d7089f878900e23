"""The default network: the same face as CD-UNet, three maps, several rounds of attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from coam import samples
from coam.geometry.coordinates import cell_centres
from coam.images import load_image
from coam.images.resize import resize_for_model
from coam.models.outputs import DenseDescriptors
from coam.models.registry import DEFAULT_MODEL, load_model, packaged_weights
from coam.models.stacked import StackedCDUNet
from support.small_networks import difference, mean_cosine, picture, small_stacked

MAPS = ("descriptors", "score", "fine", "coarse")


@pytest.fixture(scope="module")
def net() -> StackedCDUNet:
    return small_stacked()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def furthest(one: DenseDescriptors, two: DenseDescriptors) -> float:
    """The largest difference between any two maps of the same name."""
    assert (one.size, one.stride, one.fine_stride) == (two.size, two.stride, two.fine_stride)
    return max(difference(getattr(one, name), getattr(two, name)) for name in MAPS)


@pytest.mark.parametrize(
    "sizes", [((64, 64), (64, 64)), ((32, 96), (64, 32))], ids=["one batch", "two sizes"]
)
def test_swapped_inputs_give_swapped_outputs(
    net: StackedCDUNet, sizes: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    a, b = picture(*sizes[0]), picture(*sizes[1], seed=1)
    a_first, b_second = net(a, b)
    b_first, a_second = net(b, a)
    assert furthest(a_first, a_second) < 1e-4
    assert furthest(b_first, b_second) < 1e-4


def test_descriptors_depend_on_the_other_image(net: StackedCDUNet) -> None:
    a = picture(64, 64)
    first, second = (net(a, picture(64, 64, seed=s))[0] for s in (1, 2))
    for name in MAPS:
        assert difference(getattr(first, name), getattr(second, name)) > 1e-3, name


@pytest.mark.parametrize("other_size", [(64, 64), (32, 96)])
def test_without_conditioning_they_do_not(other_size: tuple[int, int]) -> None:
    net = small_stacked(conditioning=False)
    a = picture(64, 64)
    first, second = (net(a, picture(*other_size, seed=s))[0] for s in (1, 2))
    assert furthest(first, second) == 0.0
    assert net.attention_maps(net.encode(a), net.encode(a)) == {}
    assert set(net.state_dict()) == set(small_stacked().state_dict())  # equal capacity


@pytest.mark.parametrize("size_b", [(64, 96), (32, 64)])
def test_encode_and_decode_apart_equal_forward(net: StackedCDUNet, size_b: tuple[int, int]) -> None:
    a, b = picture(64, 96), picture(*size_b, seed=1)
    for one, two in zip(net(a, b), net.decode(net.encode(a), net.encode(b)), strict=True):
        assert furthest(one, two) < 1e-4


def test_images_of_one_size_as_one_batch_equal_two_groups(net: StackedCDUNet) -> None:
    """A mask that is all true forces the way of two groups; the result must not differ."""
    a, b = net.encode(picture(64, 64)), net.encode(picture(64, 64, seed=1))
    one_batch = net.decode(a, b)
    groups = [a, b]
    for index, (image, conditioned) in enumerate(zip(groups, net.condition(groups), strict=True)):
        assert furthest(one_batch[index], net._describe(image, conditioned)) < 1e-4


def test_batch_equals_singles(net: StackedCDUNet) -> None:
    for size_b in ((32, 64), (64, 32)):
        a, b = picture(32, 64, batch=2), picture(*size_b, seed=1, batch=2)
        both = net(a, b)
        for i in range(2):
            for one, two in zip(both, net(a[i : i + 1], b[i : i + 1]), strict=True):
                for name in MAPS:
                    assert difference(getattr(one, name)[i], getattr(two, name)[0]) < 1e-4


CELLS = {  # size -> cells at strides 4, 2 and 16 whose centre lies in the image (at least one), by hand
    (1, 1): ((1, 1), (1, 1), (1, 1)),
    (17, 33): ((4, 8), (8, 16), (1, 2)),
    (97, 131): ((24, 33), (48, 65), (6, 8)),
    (64, 200): ((16, 50), (32, 100), (4, 12)),
}


@pytest.mark.parametrize(("size_a", "size_b"), [((1, 1), (17, 33)), ((97, 131), (64, 200))])
def test_odd_and_different_sizes(
    net: StackedCDUNet, size_a: tuple[int, int], size_b: tuple[int, int]
) -> None:
    dense = net(picture(*size_a), picture(*size_b, seed=1))
    for image, size in zip(dense, (size_a, size_b), strict=True):
        assert image.size == size
        found = (image.descriptors.shape[-2:], image.fine.shape[-2:], image.coarse.shape[-2:])
        assert tuple(tuple(shape) for shape in found) == CELLS[size]
        assert image.score.shape[-2:] == image.descriptors.shape[-2:]
        for name in ("descriptors", "coarse"):
            assert difference(getattr(image, name).norm(dim=1), torch.ones(())) < 1e-5
        assert 0.0 <= float(image.score.min()) <= float(image.score.max()) <= 1.0
        if min(size) > 16:
            height, width = size
            for feature_map, stride in ((image.descriptors, 4), (image.fine, 2), (image.coarse, 16)):
                rows, columns = feature_map.shape[-2:]
                furthest_centre = cell_centres(columns, rows, stride)[-1].tolist()
                assert furthest_centre[0] <= width - 1
                assert furthest_centre[1] <= height - 1


def test_padding_cannot_be_attended_to(net: StackedCDUNet) -> None:
    """At stride 16 an image of 70 x 40 has 4 x 2 cells; others exist in its padded map of 6 x 4."""
    a, b = net.encode(picture(64, 64)), net.encode(picture(70, 40, seed=1))
    before = net.decode(a, b)[0]
    for rows, unchanged in ((4, True), (3, False)):
        levels = list(b.levels)
        levels[3] = b.levels[3] + 50.0 * torch.randn(1, 32, 1, 1, generator=torch.Generator().manual_seed(0))
        levels[3][..., :rows, :2] = b.levels[3][..., :rows, :2]
        after = net.decode(a, replace(b, levels=tuple(levels)))[0]
        assert (furthest(before, after) == 0.0) == unchanged


def test_large_images_meet_at_a_smaller_size_and_are_described_at_their_own() -> None:
    free, bound = small_stacked(meeting_side=10_000), small_stacked(meeting_side=64)
    bound.load_state_dict(free.state_dict())
    small, large = picture(64, 48), picture(200, 130, seed=1)
    assert all(map(torch.equal, free.encode(small).levels, bound.encode(small).levels))
    levels, whole = bound.encode(large).levels, free.encode(large).levels
    assert all(map(torch.equal, levels[:3], whole[:3]))
    # Padded to 224 x 160: the long side becomes 64, the other one the nearest multiple of 32.
    assert [tuple(level.shape[-2:]) for level in levels[3:]] == [(4, 2), (2, 1)]
    for one, two in ((small, large), (large, large)):
        found = bound.decode(bound.encode(one), bound.encode(two))
        expected = free.decode(free.encode(one), free.encode(two))
        for mine, usual in zip(found, expected, strict=True):
            assert all(getattr(mine, name).shape == getattr(usual, name).shape for name in MAPS)


def test_a_large_image_meets_as_its_smaller_copy_does() -> None:
    net = small_stacked(meeting_side=96)
    large, other = picture(192, 192), picture(96, 96, seed=1)
    copy = F.interpolate(large, (96, 96), mode="bilinear", antialias=True, align_corners=False)
    enlarged, own, theirs = net.encode(large), net.encode(copy), net.encode(other)
    conditioned, same = (net.condition([e, theirs])[0] for e in (own, enlarged))
    assert same.shape[-2:] == (12, 12)
    expected = F.interpolate(conditioned, (12, 12), mode="bilinear", align_corners=False)
    torch.testing.assert_close(same, expected)
    attention = net.attention_maps(enlarged, theirs)
    assert {stride: tuple(a.shape[1:]) for stride, a in attention.items()} == {
        32: (3, 3, 3, 3),
        16: (6, 6, 6, 6),
    }


def test_temperature_starts_as_configured_and_is_bounded() -> None:
    net = small_stacked(descriptor_temperature=12.0)
    assert float(net.logit_scale) == pytest.approx(12.0, rel=1e-5)
    net.log_temperature.fill_(10.0)
    assert float(net.logit_scale) == 60.0


@pytest.mark.skipif(packaged_weights(DEFAULT_MODEL) is None, reason="no trained weights in this checkout")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trained_network_in_half_precision(dtype: torch.dtype) -> None:
    """Seen on the bundled stereo pair: mean cosine 0.99989 in bfloat16 and 0.999999 in float16."""
    net, pair = load_model(DEFAULT_MODEL).model, samples.motorcycle()
    a, b = (resize_for_model(load_image(path).rgb, 192).tensor for path in (pair.left, pair.right))
    exact = net(a, b)[0]
    with torch.autocast("cpu", dtype):
        rough = net(a, b)[0]
    least = 0.999 if dtype is torch.bfloat16 else 0.9999
    assert mean_cosine(exact.descriptors, rough.descriptors) > least
    assert mean_cosine(exact.coarse, rough.coarse) > least
    assert float((exact.score - rough.score).abs().mean()) < 0.002
