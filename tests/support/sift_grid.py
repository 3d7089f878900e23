"""SIFT made to look like our matcher: keypoints named by grid cells, sub-pixel offsets in the second "
"image."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from coam.images import load_image
from coam.types import Grid, Matches


class SiftGridMatcher:
    """RootSIFT, ratio test, mutual; one keypoint per grid cell."""

    fingerprint = "sift on a grid"

    def __init__(self, step: float = 4.0, features: int = 8000) -> None:
        self.step, self.features = step, features
        self._read = lru_cache(maxsize=256)(self._read_uncached)

    def _read_uncached(self, path: str):
        import cv2

        rgb = load_image(path).rgb
        height, width = rgb.shape[:2]
        grid = Grid(
            int(width // self.step), int(height // self.step), ((self.step - 1) / 2,) * 2, (self.step,) * 2
        )
        grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        keypoints, descriptors = cv2.SIFT_create(self.features, contrastThreshold=0.01).detectAndCompute(
            grey, None
        )
        xy = np.array([k.pt for k in keypoints], float)
        angle = np.radians([k.angle for k in keypoints])
        frame = np.array([k.size for k in keypoints])[:, None, None] * np.stack(
            [np.stack([np.cos(angle), -np.sin(angle)], -1), np.stack([np.sin(angle), np.cos(angle)], -1)], 1
        )
        column = np.clip(np.rint((xy[:, 0] - grid.origin[0]) / self.step), 0, grid.columns - 1)
        row = np.clip(np.rint((xy[:, 1] - grid.origin[1]) / self.step), 0, grid.rows - 1)
        ids = (row * grid.columns + column).astype(np.int64)
        strongest = np.argsort([-k.response for k in keypoints], kind="stable")
        _, first = np.unique(ids[strongest], return_index=True)
        kept = strongest[first]
        root = np.sqrt(descriptors[kept] / descriptors[kept].sum(1, keepdims=True)).astype(np.float32)
        return rgb.shape[1::-1], grid, ids[kept], xy[kept], frame[kept], root

    def match_many(self, pairs):
        for first, second in pairs:
            yield self.match(first, second)

    def match(self, image0, image1) -> Matches:
        size0, grid0, ids0, xy0, frame0, d0 = self._read(str(Path(image0)))
        size1, grid1, ids1, xy1, frame1, d1 = self._read(str(Path(image1)))
        similarity = d0 @ d1.T
        top = np.partition(similarity, -2, axis=1)[:, -2:]
        best = similarity.argmax(1)
        distance = np.sqrt(np.maximum(2 - 2 * top, 1e-9))
        mutual = similarity.argmax(0)[best] == np.arange(len(d0))
        a = np.flatnonzero(mutual & (distance[:, 1] < 0.85 * distance[:, 0]))
        b = best[a]
        affine = frame1[b] @ np.linalg.inv(frame0[a])
        points0 = grid0.positions(ids0[a])
        points1 = xy1[b] + np.einsum("nij,nj->ni", affine, points0 - xy0[a])
        scores = 1 - distance[a, 1] / distance[a, 0]
        order = np.argsort(-scores, kind="stable")
        return Matches(
            points0[order], points1[order].astype(np.float32), scores[order].astype(np.float32),
            ids0[a][order], ids1[b][order], tuple(size0), tuple(size1), grid0, grid1,
        )  # fmt: skip
