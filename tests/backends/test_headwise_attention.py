"""Attention head by head against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coam.backends import headwise_attention
from coam.backends.eager import FoldedNetwork
from coam.backends.headwise_attention import HeadwiseAttention, attend, is_faster
from coam.models.coattention import AttentionBlock, rotary_angles
from coam.models.stacked import StackedCDUNet, StackedConfig

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def block() -> AttentionBlock:
    torch.manual_seed(3)
    made = AttentionBlock(channels=32, heads=4)
    torch.nn.init.normal_(made.out.weight, std=0.3)
    return made.eval()


def test_two_keys_by_hand():
    """Logits 0 and ln 3 after division by sqrt(4): weights 1/4 and 3/4."""
    query = torch.tensor([2.0, 0, 0, 0]).view(1, 1, 1, 4)
    key = torch.tensor([[0.0, 5, 0, 0], [torch.tensor(3.0).log(), 0, 7, 0]]).view(1, 1, 2, 4)
    value = torch.tensor([[4.0, 0, 0, 8], [0, 4, 0, 8]]).view(1, 1, 2, 4)
    torch.testing.assert_close(attend(query, key, value), torch.tensor([[[1.0, 3.0, 0.0, 8.0]]]))


@pytest.mark.parametrize("logits", [2**20, 200, 70, 1])  # all heads, two, rows of one, single rows
def test_blocks_of_heads_and_queries_change_nothing(logits, monkeypatch):
    monkeypatch.setattr(headwise_attention, "_LOGITS", logits)
    query, key, value = random(2, 3, 13, 8), random(2, 3, 7, 8, seed=1), random(2, 3, 7, 8, seed=2)
    expected = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attend(query, key, value), expected)


@pytest.mark.parametrize("factor", [1.0, 6.0, 20.0, 200.0])
def test_large_exponents_are_shifted_into_range(factor):
    """Beyond factor 6 powers of two of the exponents themselves are infinite, or all zero in a row."""
    query, key = factor * random(1, 2, 64, 8), factor * random(1, 2, 50, 8, seed=1)
    value = random(1, 2, 50, 8, seed=2)
    expected = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attend(query, key, value), expected, atol=1e-4, rtol=1e-4)
    assert attend(query.bfloat16(), key.bfloat16(), value.bfloat16()).isfinite().all()


def test_one_head_out_of_range_leaves_another_as_it_is():
    query, key, value = (random(1, 2, 9, 8, seed=seed) for seed in range(3))
    alone = attend(query[:, :1], key[:, :1], value[:, :1])
    query[:, 1] *= 500
    torch.testing.assert_close(attend(query, key, value)[..., :8], alone)


def test_bfloat16_is_as_exact_as_its_rounding_allows():
    query, key, value = (random(1, 6, 300, 32, seed=seed).bfloat16() for seed in range(3))
    exact = F.scaled_dot_product_attention(query.float(), key.float(), value.float())
    error = attend(query, key, value).float() - exact.transpose(1, 2).flatten(2)
    assert error.square().mean().sqrt() < 0.006 * exact.square().mean().sqrt()


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_the_block_computes_what_it_replaces(masked):
    plain = block()
    tokens, source = random(2, 12, 32), random(2, 12, 32, seed=1)
    valid = torch.arange(12) < 9 if masked else None
    angles = rotary_angles(3, 4, 8, CPU)
    fast = HeadwiseAttention(plain)
    torch.testing.assert_close(fast(tokens, source, angles, valid), plain(tokens, source, angles, valid))
    torch.testing.assert_close(fast.attention(tokens, source), plain.attention(tokens, source))


def test_a_network_in_bfloat16_works_head_by_head_unless_there_is_amx(monkeypatch):
    model = StackedCDUNet(StackedConfig(width=32, heads=2, rounds=(1, 1)))
    for amx in (False, True):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        blocks = [m for m in FoldedNetwork(model, CPU, torch.bfloat16).model.modules() if is_block(m)]
        assert len(blocks) == 4
        assert all(isinstance(m, HeadwiseAttention) != amx for m in blocks)
    assert not is_faster(CPU, torch.float32)
    assert not any(isinstance(module, HeadwiseAttention) for module in model.modules())  # a copy was changed


def is_block(module: torch.nn.Module) -> bool:
    return isinstance(module, AttentionBlock)
