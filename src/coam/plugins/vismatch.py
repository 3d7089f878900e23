"""coam as a matcher of vismatch: `register()`, then `vismatch.get_matcher("coam")`; or `CoamMatcher()`.

Copied to vismatch/im_models/coam.py this file works as well.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import vismatch
from torch import Tensor
from vismatch import BaseMatcher

import coam
from coam.matching.settings import MatcherConfig
from coam.models.registry import DEFAULT_MODEL
from coam.types import FloatArray

NAME = "coam"


class CoamMatcher(BaseMatcher):  # type: ignore[misc]
    """A coam model behind vismatch's interface; `kwargs` that are settings of coam's matcher go to it."""

    def __init__(
        self, device: str = "cpu", max_num_keypoints: int = 2048, model: str = DEFAULT_MODEL, **kwargs: Any
    ) -> None:
        super().__init__(device, **kwargs)
        settings = {
            name: value for name, value in kwargs.items() if name in MatcherConfig.__dataclass_fields__
        }
        self.matcher = coam.load_matcher(model, device, **{"max_matches": max_num_keypoints, **settings})

    def _forward(
        self, img0: Tensor, img1: Tensor
    ) -> tuple[FloatArray, FloatArray, None, None, None, None, FloatArray]:
        """Matched points (N, 2) of both images (3, H, W), no other keypoints, no descriptors, scores (N,).

        Descriptors are conditioned on the other image, so one image alone has none to give.
        """
        # Bicubic resizing, which vismatch does on request, leaves values a little outside [0, 1].
        found = self.matcher.match(img0.clamp(0, 1), img1.clamp(0, 1))
        return found.points0, found.points1, None, None, None, None, found.scores


def register() -> None:
    """Make `vismatch.get_matcher("coam")` give this matcher; what else was registered stays."""
    if NAME in vismatch.available_models:
        return
    known = vismatch.get_matcher

    @wraps(known)
    def get_matcher(matcher_name: Any = NAME, *args: Any, **kwargs: Any) -> Any:
        return CoamMatcher(*args, **kwargs) if matcher_name == NAME else known(matcher_name, *args, **kwargs)

    vismatch.get_matcher = get_matcher
    vismatch.available_models.append(NAME)
