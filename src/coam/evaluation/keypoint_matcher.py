"""CAPSNet's protocol: SIFT keypoints of both photos, described by a dense network, mutual nearest neighbours.

The dense grid of `Matcher` finds matches everywhere; here the network only describes what a detector found,
as in the tables of CAPS (Wang et al., ECCV 2020) and in the paper's second experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from coam.evaluation.matchers import MatcherSpec, PathPair
from coam.geometry.coordinates import resize_points
from coam.images import load_image
from coam.matching import mutual_nearest, sample_map
from coam.types import FloatArray, Matches

if TYPE_CHECKING:
    from coam.matcher import Matcher, PreparedImage

MAX_KEYPOINTS = 2048  # of a photo


class KeypointMatcher:
    """A `PairMatcher` that describes SIFT keypoints with one of our models."""

    def __init__(self, matcher: Matcher, max_keypoints: int = MAX_KEYPOINTS, cached: int = 64) -> None:
        import cv2

        self.matcher = matcher
        # OpenCV's SIFT puts the centre of the top-left pixel at (0, 0), as we do.
        self._sift = cv2.SIFT.create(nfeatures=max_keypoints)
        self._cached = cached
        self._keypoints: dict[Path, tuple[PreparedImage, Tensor]] = {}

    def match_many(self, pairs: Iterable[PathPair]) -> Iterator[Matches]:
        """Matches of each pair, most similar first; their score is the similarity of the descriptors."""
        for path0, path1 in pairs:
            yield self._match(path0, path1)

    def _match(self, path0: Path, path1: Path) -> Matches:
        (photo0, points0), (photo1, points1) = self._prepared(path0), self._prepared(path1)
        describe: Callable[[Any, Any], tuple[Any, Any]] = self.matcher.describe  # takes prepared photos too
        dense0, dense1 = describe(photo0, photo1)
        found = mutual_nearest(_described(dense0, photo0, points0), _described(dense1, photo1, points1))
        order = found.similarity.argsort(descending=True, stable=True)
        index0, index1 = found.index0[order], found.index1[order]
        none = np.full(len(order), -1, dtype=np.int64)
        return Matches(
            _numpy(points0[index0]),
            _numpy(points1[index1]),
            _numpy(found.similarity[order].clamp(0, 1)),
            none,
            none,
            photo0.image.size,
            photo1.image.size,
        )

    def _prepared(self, path: Path) -> tuple[PreparedImage, Tensor]:
        """A photo, encoded, and its keypoints (N, 2) in original pixels."""
        if path not in self._keypoints:
            image = load_image(path)
            found = self._sift.detect(np.ascontiguousarray(image.rgb), None)
            points = np.asarray([k.pt for k in found], dtype=np.float32).reshape(-1, 2)
            points = np.unique(points, axis=0)  # SIFT repeats a place for each of its orientations
            while len(self._keypoints) >= self._cached:
                del self._keypoints[next(iter(self._keypoints))]
            prepared = self.matcher.prepare(image)
            self._keypoints[path] = prepared, torch.from_numpy(points).to(self.matcher.device)
        return self._keypoints[path]


def _described(dense: Any, photo: PreparedImage, points: Tensor) -> Tensor:
    """Unit descriptors (N, D) at original pixels (N, 2)."""
    inside = resize_points(points, photo.resized.scale)
    return sample_map(dense.descriptors, inside[None], dense.stride, normalise=True)[0]


def _numpy(tensor: Tensor) -> FloatArray:
    return np.asarray(tensor.cpu().numpy(), dtype=np.float32)


def on_sift_keypoints(spec: MatcherSpec, max_keypoints: int = MAX_KEYPOINTS) -> MatcherSpec:
    """One of our matchers in CAPSNet's protocol, for the benchmarks."""
    config = {**spec.config, "keypoints": "sift", "max_keypoints": max_keypoints}
    return MatcherSpec(
        f"{spec.name}+sift",
        config,
        lambda: KeypointMatcher(cast("Matcher", spec.create()), max_keypoints),
        spec.model_hash,
    )
