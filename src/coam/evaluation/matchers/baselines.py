"""Classical baselines from OpenCV: SIFT, RootSIFT and ORB with mutual nearest neighbours and ratio test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.caches import LRUCache
from coam.errors import ConfigError
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec, keypoint_matches
from coam.types import Matches, Size

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """Keypoints (N, 2) in our pixels and descriptors (N, D) of one photo."""

    points: Array
    descriptors: Array
    size: Size


def read_grey(path: Path) -> npt.NDArray[np.uint8]:
    """Photo as grey uint8 (H, W), upright by its EXIF orientation, like the photos our own matcher sees."""
    from PIL import Image

    from coam.images import load_image

    return np.asarray(Image.fromarray(load_image(path).rgb).convert("L"))


class FeatureMatcher(FunctionMatcher):
    """Detect and describe each photo once, then mutual nearest neighbours and Lowe's ratio test per pair.

    The ratio test looks at the two nearest neighbours in photo 1 of each keypoint of photo 0. Descriptors are
    compared by Euclidean distance; `squared` uses its square, which for 0/1 descriptors is the Hamming
    distance.
    """

    def __init__(
        self,
        detect: Callable[[Path], Features],
        *,
        ratio: float | None,
        squared: bool = False,
        cache_size: int = 64,
    ) -> None:
        super().__init__(lambda path0, path1: self.match(self.features(path0), self.features(path1)))
        self.detect, self.ratio, self.squared = detect, ratio, squared
        self._cache: LRUCache[Path, Features] = LRUCache(cache_size)

    def features(self, path: Path) -> Features:
        """Keypoints and descriptors of one photo, computed once while it stays in the cache."""
        return self._cache.get(path, lambda: self.detect(path))

    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches of two described photos, best first; the score is 1 - distance ratio."""
        index0 = index1 = np.zeros(0, dtype=np.int64)
        scores = np.zeros(0, dtype=np.float32)
        if len(features0.points) >= 2 and len(features1.points) >= 2:
            forward, distance = two_nearest(features0.descriptors, features1.descriptors)
            backward, _ = two_nearest(features1.descriptors, features0.descriptors)
            quotient = distance[:, 0] / np.maximum(distance[:, 1], 1e-12)
            if self.squared:
                quotient = quotient**2
            keep = backward[forward] == np.arange(len(forward))
            if self.ratio is not None:
                keep &= quotient < self.ratio
            index0 = np.nonzero(keep)[0]
            index0 = index0[np.argsort(quotient[index0], kind="stable")]
            index1 = forward[index0]
            scores = np.clip(1.0 - quotient[index0], 0.0, 1.0).astype(np.float32)
        points0, points1 = features0.points[index0], features1.points[index1]
        return keypoint_matches(points0, points1, scores, features0.size, features1.size)


def two_nearest(source: Array, target: Array, chunk: int = 2048) -> tuple[npt.NDArray[np.int64], Array]:
    """Two nearest neighbours of each row of `source` (N, D) in `target` (M, D), M >= 2.

    Index (N,) of the nearest one, and both distances (N, 2).
    """
    squares = (target**2).sum(axis=1)
    indices, distances = [], []
    for start in range(0, len(source), chunk):
        block = source[start : start + chunk]
        gap = squares - 2.0 * (block @ target.T)  # without |block|^2, which does not change the order
        pair = np.argpartition(gap, 1, axis=1)[:, :2]
        values = np.take_along_axis(gap, pair, axis=1)
        order = np.argsort(values, axis=1, kind="stable")
        pair, values = np.take_along_axis(pair, order, axis=1), np.take_along_axis(values, order, axis=1)
        indices.append(pair[:, 0])
        distances.append(np.sqrt(np.maximum(values + (block**2).sum(axis=1, keepdims=True), 0.0)))
    return np.concatenate(indices).astype(np.int64), np.concatenate(distances).astype(np.float32)


def opencv_matcher(name: str, ratio: float, max_keypoints: int) -> FeatureMatcher:
    """SIFT, RootSIFT (L1-normalised, square root: Arandjelovic and Zisserman 2012) or ORB; 0: no limit.

    OpenCV puts the centre of the top-left pixel at (0, 0), as we do.
    """
    import cv2

    kind: Any = cv2.ORB if name == "orb" else cv2.SIFT
    detector = kind.create(nfeatures=max_keypoints)

    def detect(path: Path) -> Features:
        grey = read_grey(path)
        size = (grey.shape[1], grey.shape[0])
        keypoints, descriptors = detector.detectAndCompute(grey, None)
        if descriptors is None or len(keypoints) == 0:
            return Features(np.zeros((0, 2), np.float32), np.zeros((0, 1), np.float32), size)
        if name == "orb":  # 256 bits, unpacked: the squared distance is the Hamming distance
            descriptors = np.unpackbits(descriptors, axis=1)
        if name == "rootsift":
            descriptors = np.sqrt(descriptors / np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-12))
        points = np.asarray([k.pt for k in keypoints], dtype=np.float32)
        return Features(points, np.asarray(descriptors, dtype=np.float32), size)

    return FeatureMatcher(detect, ratio=ratio, squared=name == "orb")


def opencv_spec(name: str, device: str, options: dict[str, Any]) -> MatcherSpec:
    """The spec of sift, rootsift or orb; they run on the CPU, whatever the device."""
    known = ("max_matches", "ratio")
    for option in options:
        if option not in known:
            raise ConfigError(f"{name} has no option {option!r}; it takes {', '.join(known)}")
    # --max-matches limits keypoints here, as papers do with detectors: matches are what is left of them.
    keypoints, ratio = int(options.get("max_matches", 4096)), float(options.get("ratio", 0.8))
    config = {"max_keypoints": keypoints, "ratio": ratio, "mutual": True}
    return MatcherSpec(name, config, lambda: opencv_matcher(name, ratio, keypoints))
