"""How much two images have in common by coarse descriptors alone."""

from __future__ import annotations

import math

import pytest
import torch

from coam.matching.pair_score import coarse_evidence


def test_evidence_by_hand() -> None:
    """Four unlike cells against two of them: each has a softmax of e / (e + 1) over the two, e / (e + 3) over
    the four."""
    four = torch.eye(4).view(4, 2, 2)
    two = torch.eye(4)[:, :2].reshape(4, 1, 2)
    one_match = math.e / (math.e + 1) * math.e / (math.e + 3)
    assert coarse_evidence(four, two, 1.0) == pytest.approx(2 * one_match, rel=1e-5)
    assert coarse_evidence(two, four, 1.0) == pytest.approx(2 * one_match, rel=1e-5)


def test_evidence_of_the_same_and_of_strangers() -> None:
    noise = torch.randn(2, 256, 20, 20, generator=torch.Generator().manual_seed(0))
    random = torch.nn.functional.normalize(noise, dim=1)
    assert coarse_evidence(random[0], random[0], 46.0) > 0.99 * 400
    assert coarse_evidence(random[0], random[1], 46.0) < 0.2 * 400
