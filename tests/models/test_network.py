"""The contract of `models.network`: what holds for every network of two images, whatever its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from coam.models.network import DescriptorNetwork
from support.small_networks import difference, mean_cosine, picture, small_cdunet, small_stacked

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("make", [small_cdunet, small_stacked])


@BOTH
@torch.no_grad()
def test_attention_maps_sum_to_one_and_leave_padding_out(make: Make) -> None:
    """An image of 70 x 40, padded to 96 x 64, has 2 x 1 cells of 32 and 4 x 2 cells of 16."""
    net = make()
    maps = net.attention_maps(net.encode(picture(64, 64)), net.encode(picture(70, 40, seed=1)))
    assert {stride: tuple(m.shape) for stride, m in maps.items()} == {
        16: (1, 4, 4, 6, 4),
        32: (1, 2, 2, 3, 2),
    }
    for stride, rows, columns in ((32, 2, 1), (16, 4, 2)):
        assert difference(maps[stride].sum(dim=(-2, -1)), torch.ones(())) < 1e-5
        assert difference(maps[stride][..., :rows, :columns].sum(dim=(-2, -1)), torch.ones(())) < 1e-5


@BOTH
@torch.no_grad()
def test_without_distinctiveness_the_score_is_one(make: Make) -> None:
    net = make(distinctiveness=False)
    a, _ = net(picture(32, 32), picture(32, 32, seed=1))
    side = 32 // net.capabilities.stride
    assert torch.equal(a.score, torch.ones(1, 1, side, side))
    assert net.score is None


@BOTH
def test_the_score_never_shapes_the_descriptors(make: Make) -> None:
    net: DescriptorNetwork = make()
    a, b = net(picture(32, 32), picture(32, 32, seed=1))
    (a.score.sum() + b.score.sum()).backward()
    assert {name.split(".")[0] for name, p in net.named_parameters() if p.grad is not None} == {"score"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", ["autocast", "converted"])
@pytest.mark.parametrize(
    ("make", "size", "unlike", "score_error"),
    [(small_cdunet, (64, 64), 1e-3, 0.01), (small_stacked, (70, 40), 1e-2, 0.02)],
)
@torch.no_grad()
def test_half_precision_stays_close(
    make: Make, size: tuple[int, int], unlike: float, score_error: float, how: str, dtype: torch.dtype
) -> None:
    """Seen: mean cosine .99985 and .9957 in bfloat16, .999998 and .99990 in float16.

    The stacked network's random weights magnify errors; its trained ones do not (test_stacked.py).
    """
    net, a, b = make(), picture(64, 64), picture(*size, seed=1)
    exact = net(a, b)[0]
    if how == "autocast":
        with torch.autocast("cpu", dtype):
            rough = net(a, b)[0]
    else:
        rough = net.to(dtype)(a.to(dtype), b.to(dtype))[0]
    assert rough.descriptors.dtype == rough.score.dtype == torch.float32
    if dtype is torch.float16:
        unlike, score_error = unlike / 20, score_error / 10
    assert mean_cosine(exact.descriptors, rough.descriptors) > 1 - unlike
    assert float((exact.score - rough.score).abs().mean()) < score_error


@torch.no_grad()
def test_coarse_descriptors_are_those_of_the_decoder() -> None:
    net = small_stacked()
    for size in ((64, 96), (32, 64)):  # one batch, and two
        a, b = net.encode(picture(64, 96)), net.encode(picture(*size, seed=1))
        cheap, decoded = net.coarse_descriptors(a, b), net.decode(a, b)
        assert cheap is not None
        for one, two in zip(cheap, decoded, strict=True):
            assert two.coarse is not None
            assert torch.equal(one, two.coarse)
    assert small_cdunet().coarse_descriptors(a, b) is None
