"""CAPSNet's protocol: SIFT keypoints of both photos, described by a dense network, mutual nearest neighbours.

The dense grid of `Matcher` finds matches everywhere; here the network only describes what a detector found,
as in the tables of CAPS (Wang et al., ECCV 2020) and in the paper's second experiment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from coam.caches import LRUCache
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec, keypoint_matches
from coam.geometry.coordinates import resize_points
from coam.images import load_image
from coam.matching.grid import sample_map
from coam.matching.mutual import mutual_nearest
from coam.models.outputs import DenseDescriptors
from coam.tensors import as_array
from coam.types import Matches, Size

if TYPE_CHECKING:
    from coam.matcher import Matcher, PreparedImage

MAX_KEYPOINTS = 2048  # of a photo


class KeypointMatcher(FunctionMatcher):
    """A `PairMatcher` that describes SIFT keypoints with one of our models."""

    def __init__(self, matcher: Matcher, max_keypoints: int = MAX_KEYPOINTS, cached: int = 64) -> None:
        import cv2

        super().__init__(self._match)
        self.matcher = matcher
        # OpenCV's SIFT puts the centre of the top-left pixel at (0, 0), as we do.
        self._sift = cv2.SIFT.create(nfeatures=max_keypoints)
        self._prepared: LRUCache[Path, tuple[PreparedImage, Tensor]] = LRUCache(cached)

    def _match(self, path0: Path, path1: Path) -> Matches:
        """Matches of a pair, most similar first; their score is the similarity of the descriptors."""
        photo0, points0 = self._prepared.get(path0, lambda: self._prepare(path0))
        photo1, points1 = self._prepared.get(path1, lambda: self._prepare(path1))
        dense0, dense1 = self.matcher.describe(photo0, photo1)
        found = mutual_nearest(
            descriptors_at(dense0, points0, photo0.image.size),
            descriptors_at(dense1, points1, photo1.image.size),
        )
        order = found.similarity.argsort(descending=True, stable=True)
        index0, index1 = found.index0[order], found.index1[order]
        return keypoint_matches(
            as_array(points0[index0]),
            as_array(points1[index1]),
            as_array(found.similarity[order].clamp(0, 1)),
            photo0.image.size,
            photo1.image.size,
        )

    def _prepare(self, path: Path) -> tuple[PreparedImage, Tensor]:
        """A photo, encoded, and its keypoints (N, 2) in original pixels."""
        image = load_image(path)
        found = self._sift.detect(np.ascontiguousarray(image.rgb), None)
        points = np.asarray([k.pt for k in found], dtype=np.float32).reshape(-1, 2)
        points = np.unique(points, axis=0)  # SIFT repeats a place for each of its orientations
        return self.matcher.prepare(image), torch.from_numpy(points).to(self.matcher.device)


def descriptors_at(dense: DenseDescriptors, points: Tensor, size: Size) -> Tensor:
    """Unit descriptors (N, D) at pixels (N, 2) of a photo whose original `size` is (width, height)."""
    inside = resize_points(points, (dense.size[1] / size[0], dense.size[0] / size[1]))
    return sample_map(dense.descriptors, inside[None], dense.stride, normalise=True)[0]


def on_sift_keypoints(spec: MatcherSpec, max_keypoints: int = MAX_KEYPOINTS) -> MatcherSpec:
    """One of our matchers in CAPSNet's protocol, for the benchmarks."""
    config = {**spec.config, "keypoints": "sift", "max_keypoints": max_keypoints}
    return MatcherSpec(
        f"{spec.name}+sift",
        config,
        lambda: KeypointMatcher(cast("Matcher", spec.create()), max_keypoints),
        spec.model_hash,
    )
