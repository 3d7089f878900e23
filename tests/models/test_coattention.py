"""Co-attention against plain loops, and the properties that the networks lean on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from coam.models.coattention import (
    AttentionBlock,
    CoAttention,
    flatten_map,
    rotary_angles,
    rotate_pairs,
    unflatten_map,
)

QUERY_SHAPE, OTHER_SHAPE = (3, 4), (2, 5)


def maps(channels: int = 6, batch: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(batch, channels, *QUERY_SHAPE, generator=generator, dtype=torch.float64)
    other = torch.randn(batch, channels, *OTHER_SHAPE, generator=generator, dtype=torch.float64)
    return query, other


def module(value: str, scale: float | None, channels: int = 6, projected: int = 4) -> CoAttention:
    torch.manual_seed(5)
    return CoAttention(channels, projected, value=value, scale=scale).double()


def project(weight: Tensor, bias: Tensor, feature: list[float]) -> list[float]:
    """A 1x1 convolution at one position, number by number."""
    return [
        float(bias[o]) + sum(float(weight[o, c, 0, 0]) * feature[c] for c in range(len(feature)))
        for o in range(weight.shape[0])
    ]


def naive_coattention(
    net: CoAttention, query: Tensor, other: Tensor, allowed: list[bool]
) -> tuple[Tensor, Tensor]:
    """Eq. 1 with Python floats only: gathered features and attention, position by position."""
    batch, _, query_height, query_width = query.shape
    other_height, other_width = other.shape[-2:]
    gathered = torch.zeros(batch, net.out_channels, query_height, query_width, dtype=torch.float64)
    attention = torch.zeros(batch, query_height, query_width, other_height, other_width, dtype=torch.float64)
    places = [(r, c) for r in range(other_height) for c in range(other_width)]
    for b in range(batch):
        raw = [other[b, :, r, c].tolist() for r, c in places]
        context = [project(net.context.weight, net.context.bias, feature) for feature in raw]
        values = context if net.value == "projected" else raw
        for i in range(query_height):
            for j in range(query_width):
                mine = project(net.query.weight, net.query.bias, query[b, :, i, j].tolist())
                exponentials = [
                    math.exp(net.scale * sum(m * k for m, k in zip(mine, key, strict=True))) if ok else 0.0
                    for key, ok in zip(context, allowed, strict=True)
                ]
                total = sum(exponentials)
                for place, exponential in enumerate(exponentials):
                    share = exponential / total
                    attention[b, i, j][places[place]] = share
                    for channel in range(net.out_channels):
                        gathered[b, channel, i, j] += share * values[place][channel]
    return gathered, attention


@pytest.mark.parametrize("value", ["projected", "raw"])
@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_equals_a_naive_loop(value: str, scale: float | None, masked: bool) -> None:
    net, (query, other) = module(value, scale), maps()
    allowed = [not masked or place % 5 < 3 for place in range(10)]  # masked: the last two columns are padding
    valid = torch.tensor(allowed) if masked else None
    gathered, attention = naive_coattention(net, query, other, allowed)
    torch.testing.assert_close(net(query, other, valid), gathered, rtol=0, atol=1e-12)
    torch.testing.assert_close(net.attention(query, other, valid), attention, rtol=0, atol=1e-12)


@torch.no_grad()
def test_hand_computed_weights() -> None:
    """One channel, identity projections: logits 0 and ln 3 give shares 1/4 and 3/4."""
    net = CoAttention(1, 1).double()
    for layer in (net.query, net.context):
        layer.weight.fill_(1.0)
        layer.bias.zero_()
    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    other = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64).view(1, 1, 1, 2)
    torch.testing.assert_close(net.attention(query, other).flatten(), torch.tensor([0.25, 0.75]).double())
    assert float(net(query, other)) == pytest.approx(0.75 * math.log(3.0), abs=1e-12)


@torch.no_grad()
def test_rows_sum_to_one_and_masked_places_get_nothing() -> None:
    net, (query, other) = module("projected", None), maps()
    valid = torch.tensor([True, False] * 5)
    attention = net.attention(query, other, valid)
    assert attention.shape == (2, *QUERY_SHAPE, *OTHER_SHAPE)
    torch.testing.assert_close(attention.sum(dim=(-2, -1)), torch.ones(2, *QUERY_SHAPE).double())
    assert float(attention.flatten(3)[..., ~valid].max()) == 0.0


@torch.no_grad()
def test_projection_widths_and_default_scale() -> None:
    assert module("projected", None).out_channels == 4
    assert module("raw", None).out_channels == 6
    assert module("raw", None).scale == 1.0
    query, other = maps()
    assert module("projected", None)(query, other).shape == (2, 4, *QUERY_SHAPE)
    assert module("raw", None)(query, other).shape == (2, 6, *QUERY_SHAPE)


@torch.no_grad()
def test_large_unscaled_logits_stay_finite_in_half_precision() -> None:
    """Logits of 60 * 60 * 64 = 230 400 exceed fp16's 65 504; the softmax is computed in float32."""
    net = CoAttention(64, 64).half()
    for layer in (net.query, net.context):
        layer.weight.copy_(torch.eye(64).view(64, 64, 1, 1))
        layer.bias.zero_()
    feature = torch.full((1, 64, 1, 2), 60.0, dtype=torch.float16)
    feature[..., 1] = 59.0
    attention = net.attention(feature, feature)
    assert torch.isfinite(attention).all()
    assert float(attention[0, 0, 0, 0, 0]) == 1.0


def test_flatten_and_unflatten_are_inverse() -> None:
    feature_map = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
    tokens = flatten_map(feature_map)
    assert tokens.shape == (2, 20, 3)
    assert torch.equal(tokens[1, 7], feature_map[1, :, 1, 2])  # row 1, column 2 of width 5
    assert torch.equal(unflatten_map(tokens, 4, 5), feature_map)


# ---- rotary positions and the residual block


def test_rotary_angles_by_hand() -> None:
    """Eight channels: two frequencies, 1 and 100 ** -0.5 = 0.1; the first half of the angles is x, then y."""
    angles = rotary_angles(2, 3, 8, torch.device("cpu"))
    assert angles.shape == (6, 4)
    torch.testing.assert_close(angles[5], torch.tensor([2.0, 0.2, 1.0, 0.1]))  # row 1, column 2


def test_rotation_keeps_lengths_and_products_see_only_relative_positions() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16, generator=generator, dtype=torch.float64)
    angles = rotary_angles(6, 7, 16, torch.device("cpu")).double()
    everywhere_q = rotate_pairs(query.expand(1, 1, 42, 16), angles)[0, 0]
    everywhere_k = rotate_pairs(key.expand(1, 1, 42, 16), angles)[0, 0]
    torch.testing.assert_close(everywhere_q.norm(dim=-1), query.norm().expand(42))
    products = (everywhere_q @ everywhere_k.T).view(6, 7, 6, 7)
    # From (1, 2) to (3, 5) and from (2, 0) to (4, 3): the same step of 2 rows and 3 columns.
    torch.testing.assert_close(products[1, 2, 3, 5], products[2, 0, 4, 3], rtol=0, atol=1e-6)
    torch.testing.assert_close(products[0, 0, 0, 0], products[5, 6, 5, 6], rtol=0, atol=1e-6)
    assert abs(float(products[1, 2, 3, 5] - products[1, 2, 3, 4])) > 0.1  # another step, another product


def stirred_block(channels: int = 16, heads: int = 2) -> AttentionBlock:
    torch.manual_seed(2)
    block = AttentionBlock(channels, heads).double()
    torch.nn.init.normal_(block.out.weight, std=0.3)  # it starts as the identity, where nothing would show
    return block


@torch.no_grad()
def test_block_is_the_same_wherever_the_window_lies() -> None:
    block = stirred_block()
    tokens = torch.randn(1, 12, 16, dtype=torch.float64)
    angles = rotary_angles(3, 4, 8, torch.device("cpu")).double()
    here, elsewhere = block(tokens, tokens, angles), block(tokens, tokens, angles + angles[7])
    torch.testing.assert_close(here, elsewhere, rtol=0, atol=1e-10)
    assert float((here - block(tokens, tokens)).abs().max()) > 1e-3  # positions do matter


@torch.no_grad()
def test_block_equals_its_formula_and_respects_the_mask() -> None:
    block = stirred_block(heads=2)
    tokens, source = torch.randn(1, 5, 16).double(), torch.randn(1, 7, 16).double()
    valid = torch.tensor([True, True, True, False, True, False, True])
    query = block.query(block.norm_query(tokens))
    key, value = block.key_value(block.norm_query(source)).chunk(2, dim=-1)
    heads, weights = [], []
    for head in (slice(0, 8), slice(8, 16)):
        logits = query[..., head] @ key[..., head].transpose(1, 2) / math.sqrt(8)
        exponential = logits.exp() * valid
        weights.append(exponential / exponential.sum(-1, keepdim=True))
        heads.append(weights[-1] @ value[..., head])
    after = tokens + block.out(torch.cat(heads, dim=-1))
    expected = after + block.mlp(block.norm_mlp(after))
    torch.testing.assert_close(block(tokens, source, None, valid), expected, rtol=0, atol=1e-10)
    attention = block.attention(tokens, source, valid)
    torch.testing.assert_close(attention.double(), sum(weights) / 2, rtol=0, atol=1e-6)
    changed = source.clone()
    changed[:, ~valid] = 1e3
    assert torch.equal(block(tokens, changed, None, valid), block(tokens, source, None, valid))


@torch.no_grad()
def test_block_starts_close_to_leaving_attention_out() -> None:
    torch.manual_seed(0)
    block = AttentionBlock(32, 4)
    tokens = torch.randn(1, 9, 32)
    without = tokens + block.mlp(block.norm_mlp(tokens))
    assert float((block(tokens, tokens) - without).abs().max()) < 0.02
