"""An oracle that takes its time: there is time to kill something."""

from __future__ import annotations

import time

from support.toy_scene import OracleMatcher, Scene


class SlowMatcher(OracleMatcher):
    """Waits before every pair."""

    seconds = 0.0

    def match(self, image0, image1, keypoints0=None):
        time.sleep(self.seconds)
        return super().match(image0, image1, keypoints0)


def load_slow(seconds: float) -> SlowMatcher:
    matcher = SlowMatcher(Scene(count=12, size=(160, 120), focal=150.0), keep=0.4)
    matcher.seconds = seconds
    return matcher
