"""Ranks by comparing all with all, in one kernel on a CUDA device. Import only where Triton is installed.

Sorting some thousand numbers takes a dozen small kernels one after the other, each of which leaves the device
nearly empty. Sixty million comparisons take ten microseconds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, TILE = 32, 256  # entries of a program, and those they are compared with at a time


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _rank_kernel(group_ptr, score_ptr, rank_ptr, count, BLOCK: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = entry < count
    group = tl.load(group_ptr + entry, mask=known, other=0)[:, None]
    score = tl.load(score_ptr + entry, mask=known, other=0.0)[:, None]
    better = tl.zeros([BLOCK, TILE], dtype=tl.int32)
    for start in range(0, count, TILE):
        other = start + tl.arange(0, TILE)
        exists = other < count
        other_group = tl.load(group_ptr + other, mask=exists, other=-1)[None, :]
        other_score = tl.load(score_ptr + other, mask=exists, other=float("-inf"))[None, :]
        is_earlier = other[None, :] < entry[:, None]
        is_better = (other_score > score) | ((other_score == score) & is_earlier)
        better += (is_better & (other_group == group) & exists[None, :]).to(tl.int32)
    tl.store(rank_ptr + entry, tl.sum(better, axis=1).to(tl.int64), mask=known)


@torch.no_grad()
def fused_rank_within(groups: Tensor, score: Tensor) -> Tensor:
    """How many better entries of its own group each entry has: (N,) int64; of equal ones the first is better.

    groups (N,) whole numbers from 0 on, score (N,) without nan.
    """
    groups, score = groups.to(torch.int32).contiguous(), score.float().contiguous()
    rank = torch.empty(len(score), dtype=torch.int64, device=score.device)
    _rank_kernel[(triton.cdiv(len(score), BLOCK),)](
        groups, score, rank, len(score), BLOCK=BLOCK, TILE=TILE, num_warps=4
    )
    return rank
