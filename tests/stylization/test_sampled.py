from __future__ import annotations

import torch

from coam.matching.flow import find_flow
from coam.stylization.sampled import confidence_of, sample_by_flow
from support.toy_pictures import described

ROWS, COLUMNS = 12, 16


def places() -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS)


def test_colours_follow_the_flow_without_mixing_across_cells() -> None:
    style = torch.zeros(3, ROWS * 4, COLUMNS * 4)
    style[0] = torch.arange(COLUMNS * 4) / (COLUMNS * 4)
    style[1] = torch.arange(ROWS * 4).unsqueeze(1) / (ROWS * 4)
    flow = find_flow(described(places()), described(places().roll(3, dims=1)), 20.0)
    sampled = sample_by_flow(style[None], flow, (ROWS * 4, COLUMNS * 4))
    assert sampled.colours.shape == (1, 3, ROWS * 4, COLUMNS * 4)
    inside = sampled.colours[0, :, 8:40, 8:40]
    torch.testing.assert_close(inside, style[:, 8:40, 20:52])
    assert sampled.confidence.shape == (1, ROWS * 4, COLUMNS * 4)
    assert sampled.confidence[0, 8:40, 8:40].min() > 0.75


def test_confidence_tells_a_match_from_none() -> None:
    nothing = find_flow(described(places()), described(places()[:7, :9] + 7000), 20.0)
    assert confidence_of(nothing.evidence).mean() < 0.35
    same = find_flow(described(places()), described(places()), 20.0)
    assert confidence_of(same.evidence).mean() > 0.8
