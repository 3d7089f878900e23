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


@pytest.mark.parametrize("logits", [2**20, 70, 1])
def test_blocks_of_queries_change_nothing(logits, monkeypatch):
    monkeypatch.setattr(headwise_attention, "_LOGITS", logits)
    query, key, value = random(2, 3, 13, 8), random(2, 3, 7, 8, seed=1), random(2, 3, 7, 8, seed=2)
    expected = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attend(query, key, value), expected)


def test_large_logits_stay_finite():
    query = 200 * random(1, 1, 5, 8).bfloat16()
    assert attend(query, query, query).isfinite().all()


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
