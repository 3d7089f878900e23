"""The packaged model of the paper's own architecture."""

from __future__ import annotations

import numpy as np

from coam import load_matcher, samples


def test_it_matches_a_real_stereo_pair_by_the_papers_settings() -> None:
    pair = samples.motorcycle()
    matcher = load_matcher("cdunet-paper-lite1", device="cpu", preset="paper", resolution=320)
    matches = matcher.match(pair.left, pair.right)
    assert len(matches) >= 400
    off_row = np.abs(matches.points0[:, 1] - matches.points1[:, 1])  # rectified: rows are epipolar lines
    print(f"{len(matches)} matches, within 5 rows: {(off_row < 5).mean():.3f}")
    assert (off_row < 5).mean() > 0.9
    assert np.isnan(matches.overlap)  # it has no pair score
    why = matcher.explain(pair.left, pair.right, point=(300.0, 200.0))
    assert sorted(why.attention) == ["stride 16", "stride 32"]
