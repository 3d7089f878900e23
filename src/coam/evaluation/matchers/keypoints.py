"""SIFT keypoints of both photos, described and matched by a dense network: mutual nearest neighbours.

The dense grid of `Matcher` finds matches everywhere; here the network only describes what a detector found,
as in the tables of CAPS (Wang et al., ECCV 2020) and in the paper's second experiment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from coam.caches import LRUCache
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec
from coam.images import load_image
from coam.types import FloatArray, Matches

if TYPE_CHECKING:
    from coam.matcher import Matcher, PreparedImage

MAX_KEYPOINTS = 4096  # of a photo, as for the SIFT baselines


class KeypointMatcher(FunctionMatcher):
    """A `PairMatcher` that describes SIFT keypoints with one of our models."""

    def __init__(self, matcher: Matcher, max_keypoints: int = MAX_KEYPOINTS, cached: int = 64) -> None:
        import cv2

        super().__init__(self._match)
        self.matcher = matcher
        # OpenCV's SIFT puts the centre of the top-left pixel at (0, 0), as we do.
        self._sift = cv2.SIFT.create(nfeatures=max_keypoints)
        self._prepared: LRUCache[Path, tuple[PreparedImage, FloatArray]] = LRUCache(cached)

    def _match(self, path0: Path, path1: Path) -> Matches:
        """Matches of a pair, best first."""
        photo0, points0 = self._prepared.get(path0, lambda: self._prepare(path0))
        photo1, points1 = self._prepared.get(path1, lambda: self._prepare(path1))
        return self.matcher.match(photo0, photo1, points0, points1)

    def _prepare(self, path: Path) -> tuple[PreparedImage, FloatArray]:
        """A photo, encoded, and its keypoints (N, 2) in original pixels."""
        image = load_image(path)
        found = self._sift.detect(np.ascontiguousarray(image.rgb), None)
        points = np.asarray([k.pt for k in found], dtype=np.float32).reshape(-1, 2)
        points = np.unique(points, axis=0)  # SIFT repeats a place for each of its orientations
        return self.matcher.prepare(image), points


def on_sift_keypoints(spec: MatcherSpec, max_keypoints: int = MAX_KEYPOINTS) -> MatcherSpec:
    """One of our matchers on SIFT keypoints, for the benchmarks."""
    config = {**spec.config, "keypoints": "sift", "max_keypoints": max_keypoints}
    return MatcherSpec(
        f"{spec.name}+sift",
        config,
        lambda: KeypointMatcher(cast("Matcher", spec.create()), max_keypoints),
        spec.model_hash,
    )
