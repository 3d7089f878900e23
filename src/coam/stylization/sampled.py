"""The sampled image: every position of VIEW coloured by its best match in STYLE, and how far to trust it.

As in the paper, the best match of EVERY position is taken, without asking that it be mutual: the flow from
VIEW (photo 0) to STYLE (photo 1), `coam.matching.flow`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.geometry.coordinates import to_unit
from coam.matching.flow import DenseFlow, carried


@dataclass(frozen=True)
class SampledImage:
    """STYLE's colours where VIEW sees them, (B, 3, H, W) in [0, 1], and their evidence (B, 4, H, W)."""

    colours: Tensor
    evidence: Tensor

    @property
    def confidence(self) -> Tensor:
        """One number per position (B, H, W) in [0, 1] out of the evidence."""
        return confidence_of(self.evidence)


def confidence_of(evidence: Tensor) -> Tensor:
    """Confidence (..., H, W) in [0, 1] from evidence (..., 4, H, W).

    A match counts when its descriptors are similar and its neighbours agree, the more the more distinctive it
    is; a mutual match of high probability needs no neighbours.
    """
    similarity, distinctiveness, probability, coherence = evidence.unbind(dim=-3)
    return similarity * torch.maximum(coherence * (0.25 + 0.75 * distinctiveness), probability)


def sample_by_flow(style: Tensor, flow: DenseFlow, size: tuple[int, int]) -> SampledImage:
    """Colours of style (B, 3, Hs, Ws) along a flow, for VIEWs of `size` (H, W).

    Each pixel moves with the cell it lies in: interpolating between cells would mix the two sides of an edge.
    """
    places = carried(flow.points, flow.stride, size, 1)
    unit = to_unit(places, style.shape[-1], style.shape[-2])
    colours = F.grid_sample(style.float(), unit, padding_mode="border", align_corners=False)
    evidence = F.interpolate(flow.evidence, size=size, mode="bilinear", align_corners=False)
    return SampledImage(colours, evidence)
