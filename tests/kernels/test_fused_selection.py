"""Ranks by comparing all with all against ranks by sorting, in Triton's interpreter or on a GPU."""

import pytest
import torch

from coam.matching import selection
from coam.matching.selection import choose_spread, rank_within
from support.triton_interpreter import DEVICE, needs_kernel

pytest.importorskip("triton")


@needs_kernel
def test_the_probe_runs():
    from coam.kernels.probe import doubles

    assert doubles(DEVICE)


@needs_kernel
@pytest.mark.parametrize("count", [1, 31, 300])
def test_ranks_are_those_of_a_sort(count):
    from coam.kernels.selection import fused_rank_within

    generator = torch.Generator().manual_seed(count)
    score = torch.randint(-3, 9, (count,), generator=generator) / 8  # many are equal
    groups = torch.randint(0, 4, (count,), generator=generator)
    found = fused_rank_within(groups.to(DEVICE), score.to(DEVICE))
    assert found.dtype == torch.int64
    assert torch.equal(found.cpu(), rank_within(groups, score))


@needs_kernel
@pytest.mark.parametrize(("count", "wanted"), [(1, 3), (250, 40), (250, 250)])
def test_the_same_are_chosen_in_the_same_order(monkeypatch, count, wanted):
    generator = torch.Generator().manual_seed(7)
    points = 100 * torch.rand(count, 2, generator=generator)
    score = torch.rand(count, generator=generator)
    expected = choose_spread(points, score, wanted, 30.0, 0.9)
    from coam.kernels import fused

    monkeypatch.setattr(selection, "fused_kernels", lambda device: fused)
    found = choose_spread(points.to(DEVICE), score.to(DEVICE), wanted, 30.0, 0.9)
    assert found.tolist() == expected.tolist()
