"""The picture of a point cloud."""

from __future__ import annotations

import numpy as np
from tools.scene_picture import draw_scene

from coam.viz import SceneCamera


def test_drawn_scene_hides_what_is_behind():
    near_and_far = np.array([[0, 0, -1.0], [0, 0, 1.0], [1.0, 0, 0], [-1.0, 0, 0], [0, 1.0, 0], [0, -1.0, 0]])
    colours = np.array([(255, 0, 0), (0, 255, 0)] + [(9, 9, 200)] * 4)
    # The camera at z = -3 looks along z: the red point is nearer.
    cameras = [SceneCamera("photo.jpg", np.eye(3), np.array([0.0, 0.0, 3.0]), 800.0, 640, 480)]
    picture = draw_scene(near_and_far, colours, cameras, size=(300, 200), yaw=0, pitch=0, distance=4)
    assert picture.size == (300, 200)
    found = {colour for _, colour in picture.getcolors(100_000)}
    assert (255, 0, 0) in found or any(c[0] > 200 and c[1] < 60 for c in found)
    assert not any(c[1] > 200 and c[0] < 60 for c in found)
