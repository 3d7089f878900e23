from __future__ import annotations

import numpy as np

from coam.viz.flow import draw_flow


def test_hue_is_direction_and_saturation_length() -> None:
    displacement = np.array([[[4, 0], [-4, 0], [0, 4], [0, 0]]], dtype=np.float32)
    picture = np.asarray(draw_flow(displacement, longest=4.0))
    wanted = [[255, 0, 0], [0, 255, 255], [127.5, 255, 0], [255, 255, 255]]
    np.testing.assert_allclose(picture[0], wanted, atol=0.5)
    dark = np.asarray(draw_flow(displacement, np.zeros((1, 4), np.float32), longest=4.0))
    assert dark.max() <= 31  # 12 % of white
    assert draw_flow(np.full((2, 3, 2), np.nan, np.float32)).size == (3, 2)
