"""The packaged CAPSNet model, learned from camera poses alone."""

import numpy as np

from coam import load_matcher, samples


def test_it_matches_a_real_stereo_pair_and_explains_itself() -> None:
    pair = samples.motorcycle()
    matcher = load_matcher("capsnet-cf", device="cpu", resolution=480, looks="once")
    matches = matcher.match(pair.left, pair.right)
    assert len(matches) == 2048
    off_row = np.abs(matches.points0[:, 1] - matches.points1[:, 1])  # rectified: rows are epipolar lines
    print(f"within 2 rows: {(off_row < 2).mean():.3f}")
    assert (off_row < 2).mean() > 0.9
    assert np.isnan(matches.overlap)  # it has no pair score
    why = matcher.explain(pair.left, pair.right, point=(300.0, 200.0))
    assert sorted(why.attention) == ["stride 16", "stride 8"]
    for attention in why.attention.values():
        assert abs(attention.sum() - 1) < 1e-3
