"""How far to trust a dense flow: the probability that a place is within a few pixels of the truth.

A logistic regression on what the search has left behind. The main witness is the round trip: what one photo
hides or does not show is found somewhere in it all the same, but the way back from there leads elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.matching.flow import DenseFlow, round_trip

FEATURES = (
    "return",  # minus the logarithm of how far the round trip misses (pixels + RETURN_FLOOR)
    "agreement",  # share of the cells around whose round trip returns
    "similarity",
    "distinctiveness",
    "probability",
    "coherence",
    "sharpness",  # minus the logarithm of the fine peak's width (pixels)
    "support",  # mean probability of the cells around
)
RETURN_FLOOR = 0.5  # pixels: round trips are not better than this


@dataclass(frozen=True)
class CertaintyOptions:
    """Coefficients of the logistic regression, and what it looks at.

    Fitted by tools/calibrate_certainty.py; docs/warp.md says on what.
    """

    weights: tuple[float, ...] = (1.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0)  # one for each of FEATURES
    bias: float = -4.0
    returned: float = 2.0  # pixels: a round trip that misses by so much counts e^-1 in "agreement"
    agreement_side: int = 9  # flow cells, squared, of "agreement"
    support_side: int = 5  # cells of 4 pixels, squared, of "support"


DEFAULT_CERTAINTY = CertaintyOptions()


@torch.no_grad()
def certainty_of(flow: DenseFlow, back: DenseFlow, options: CertaintyOptions = DEFAULT_CERTAINTY) -> Tensor:
    """Certainty (B, h, w) in [0, 1] of the places of `flow`; `back` leads from photo 1 to photo 0."""
    features = certainty_features(flow, back, options)
    weights = features.new_tensor(options.weights).view(1, -1, 1, 1)
    return torch.sigmoid((features * weights).sum(dim=1) + options.bias)


@torch.no_grad()
def certainty_features(
    flow: DenseFlow, back: DenseFlow, options: CertaintyOptions = DEFAULT_CERTAINTY
) -> Tensor:
    """What certainty is computed from, (B, len(FEATURES), h, w), one for each cell of `flow`."""
    missed = round_trip(flow, back).norm(dim=-1, keepdim=True).permute(0, 3, 1, 2)
    returned = torch.exp(-((missed / options.returned) ** 2))
    size = missed.shape[-2:]
    support = _mean_around(flow.evidence[:, 2:3], options.support_side)
    similarity, distinctiveness, probability, coherence, support = (
        F.interpolate(evidence, size=size, mode="bilinear", align_corners=False)
        for evidence in (*flow.evidence.unsqueeze(2).unbind(dim=1), support)
    )
    parts = [
        -torch.log(missed + RETURN_FLOOR),
        _mean_around(returned, options.agreement_side),
        similarity,
        distinctiveness,
        probability,
        coherence,
        -torch.log(flow.spread.unsqueeze(1).clamp(min=RETURN_FLOOR)),
        support,
    ]
    return torch.cat(parts, dim=1)


def _mean_around(values: Tensor, side: int) -> Tensor:
    """Mean (B, C, h, w) over side x side cells; beyond the border there are none."""
    return F.avg_pool2d(values, side, stride=1, padding=side // 2, count_include_pad=False)
