"""A camera and relative poses for tests of pose benchmarks."""

import numpy as np

K = np.array([[500, 0, 320], [0, 500, 240], [0, 0, 1.0]])


def turned(degrees: float, shift: tuple[float, float, float] = (1, 0, 0)) -> np.ndarray:
    """Camera 0 to camera 1 (4, 4): turned about the vertical axis, then shifted."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    pose = np.eye(4)
    pose[:3] = [[c, 0, s, shift[0]], [0, 1, 0, shift[1]], [-s, 0, c, shift[2]]]
    return pose
