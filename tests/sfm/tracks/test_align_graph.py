"""What an aligned match counts for in its track."""

from __future__ import annotations

import numpy as np
import pytest

from coam.sfm.tracks.align_graph import TrackAlignOptions, confidence


def test_confidence_grows_with_likeness():
    weights = confidence(np.array([np.nan, 0.7, 0.85, 1.0]), TrackAlignOptions())
    assert weights == pytest.approx([0.05, 0.25, 0.625, 1.0])
