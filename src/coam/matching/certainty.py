"""How far to trust a dense flow: the probability that a place is within 3 pixels of the truth.

A logistic regression on what the search has left behind. The main witness is the round trip: what one photo
hides or does not show is found somewhere in it all the same, but the way back from there leads elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.matching.flow import DenseFlow, round_trip
from coam.matching.propagation import mean_around

FEATURES = (
    "return",  # minus the logarithm of how far the round trip misses (pixels)
    "agreement",  # share of the cells around whose round trip returns
    "distinctiveness",
    "smoothness",  # minus the logarithm of how far the cells around move apart (pixels)
    "likeness",  # minus the logarithm of the fine features' difference, relative to the pair's sure matches
)
FLOOR = 0.5  # pixels: distances below it are not told apart
DIFFERENCE_FLOOR = 0.01


@dataclass(frozen=True)
class CertaintyOptions:
    """Coefficients of the logistic regression, and what it looks at. Sides are odd.

    Fitted by tools/calibrate_certainty.py on real photos with homographies and with depth; see docs/warp.md.
    """

    weights: tuple[float, ...] = (0.268, 3.883, 2.393, 1.083, 0.661)  # one for each of FEATURES
    bias: float = -2.417
    returned: float = 2.0  # pixels: a round trip that misses by so much counts e^-1 as agreement
    agreement_side: int = 31  # flow cells, squared
    smoothness_side: int = 9  # flow cells, squared, from whose mean shift a cell may differ
    near_side: int = 5  # flow cells, squared, over which smoothness and likeness are averaged


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
    missed = round_trip(flow, back).norm(dim=-1).unsqueeze(1)
    returned = torch.exp(-((missed / options.returned) ** 2))
    evidence = F.interpolate(flow.evidence, size=missed.shape[-2:], mode="bilinear", align_corners=False)
    _, distinctiveness, probability, _ = evidence.unsqueeze(2).unbind(dim=1)
    shift = (flow.points - flow.own).permute(0, 3, 1, 2)
    apart = (shift - mean_around(shift, options.smoothness_side)).norm(dim=1, keepdim=True)
    likeness = -torch.log(flow.difference.unsqueeze(1) + DIFFERENCE_FLOOR)
    sure = probability**2
    usual = (likeness * sure).sum(dim=(2, 3), keepdim=True) / sure.sum(dim=(2, 3), keepdim=True).clamp(1e-6)
    parts = [
        -torch.log(missed + FLOOR),
        mean_around(returned, options.agreement_side),
        distinctiveness,
        -torch.log(mean_around(apart, options.near_side) + FLOOR),
        mean_around(likeness, options.near_side) - usual,
    ]
    return torch.cat(parts, dim=1)
