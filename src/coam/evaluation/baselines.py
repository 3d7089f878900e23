"""Classical matchers from OpenCV behind the same face as ours: SIFT, RootSIFT, ORB."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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


class FeatureMatcher:
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
        self.detect, self.ratio, self.squared = detect, ratio, squared
        self._cache: OrderedDict[Path, Features] = OrderedDict()
        self._cache_size = cache_size

    def features(self, path: Path) -> Features:
        """Keypoints and descriptors of one photo, computed once while it stays in the cache."""
        if path in self._cache:
            self._cache.move_to_end(path)
            return self._cache[path]
        found = self.detect(path)
        self._cache[path] = found
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return found

    def match_many(self, pairs: Iterable[tuple[Path, Path]]) -> Iterator[Matches]:
        """Matches of each pair, in order."""
        for path0, path1 in pairs:
            yield self.match(self.features(Path(path0)), self.features(Path(path1)))

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
        none = np.full(len(index0), -1, dtype=np.int64)
        points0, points1 = features0.points[index0], features1.points[index1]
        return Matches(points0, points1, scores, none, none, features0.size, features1.size)


def two_nearest(source: Array, target: Array, chunk: int = 2048) -> tuple[npt.NDArray[np.int64], Array]:
    """Nearest row of `target` (M, D), M >= 2, for each row of `source` (N, D): index (N,), two distances (N,
    2).
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


def _features(grey: npt.NDArray[np.uint8], keypoints: Any, descriptors: Any, width: int) -> Features:
    size = (grey.shape[1], grey.shape[0])
    if descriptors is None or len(keypoints) == 0:
        return Features(np.zeros((0, 2), np.float32), np.zeros((0, width), np.float32), size)
    return Features(
        np.asarray([k.pt for k in keypoints], dtype=np.float32), np.asarray(descriptors, np.float32), size
    )


def sift_matcher(*, root: bool, ratio: float | None = 0.8, max_keypoints: int = 4096) -> FeatureMatcher:
    """SIFT, or RootSIFT (L1-normalised, square root: Arandjelovic and Zisserman 2012); 0: no limit."""
    import cv2

    # OpenCV's SIFT puts the centre of the top-left pixel at (0, 0), as we do.
    sift = cv2.SIFT.create(nfeatures=max_keypoints)

    def detect(path: Path) -> Features:
        grey = read_grey(path)
        keypoints, descriptors = sift.detectAndCompute(grey, None)
        if root and descriptors is not None and len(keypoints):
            total = descriptors.sum(axis=1, keepdims=True)
            descriptors = np.sqrt(descriptors / np.maximum(total, 1e-12))
        return _features(grey, keypoints, descriptors, 128)

    return FeatureMatcher(detect, ratio=ratio)


def orb_matcher(*, ratio: float | None = 0.8, max_keypoints: int = 4096) -> FeatureMatcher:
    """ORB; its 256 bits are unpacked, so that the squared distance is the Hamming distance."""
    import cv2

    orb = cv2.ORB.create(nfeatures=max_keypoints)

    def detect(path: Path) -> Features:
        grey = read_grey(path)
        keypoints, packed = orb.detectAndCompute(grey, None)
        bits = (
            None if packed is None else np.unpackbits(np.asarray(packed, np.uint8), axis=1).astype(np.float32)
        )
        return _features(grey, keypoints, bits, 256)

    return FeatureMatcher(detect, ratio=ratio, squared=True)
