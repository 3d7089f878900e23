"""Patch alignment: matches refined in the pixels of the photos themselves.

The network finds what corresponds whatever the light; its positions are a third of a pixel of its own
resolution off. Where two patches look alike, their pixels say it more exactly, in the full resolution of the
photos. So the patch around a point of photo 0 is sought near its match in photo 1, seen through the local
affine map and normalised for brightness and contrast (Lucas and Kanade, in the inverse compositional form of
Baker and Matthews: slopes are those of photo 0, so each step samples photo 1 once). The network's own
position and the map of the neighbours are the prior: pixels move a match as far as their texture and likeness
are evidence. Patches that do not look alike (day and night) leave it where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Image = npt.NDArray[np.float32]  # (H, W) grey values
MOST_ROWS = 16384  # OpenCV counts rows of what it samples with 15 bits


@dataclass(frozen=True)
class AlignOptions:
    """How matches are aligned.

    The prior and the noise were chosen on data with exact truth: the Middlebury pair, the courtyard by day
    and night, and 36 photos under made homographies.
    """

    radius: int = 6  # pixels around a match that are compared
    blur: float = 0.7  # pixels, against noise and the limits of bilinear sampling
    iterations: int = 6  # Gauss-Newton steps at every scale
    min_similarity: float = 0.7  # correlation of the two patches; below it the match stays where it was
    max_move: float = 0.5  # grid steps: what moves further has found something else
    coarsest_step: float = 4.0  # pixels: grid step at the coarsest scale, the resolution that the network saw
    prior_error: float = 0.1  # grid steps: standard deviation of the network's positions
    prior_stretch: float = 0.05  # standard deviation of the local maps' entries
    independent: float = 0.25  # of the pixels of a patch: neighbours share their noise
    min_noise: float = 0.02  # variance, of the patch's own: no two photos agree better
    min_contrast: float = 1.0  # grey values: below this a patch is noise
    window: float = 0.6  # radii: standard deviation of the Gaussian by which the pixels of a patch count

    RECORDED: ClassVar[str] = "PatchAlignment(radius, blur, iterations, min_similarity, max_move)"


def grey(rgb: npt.NDArray[np.uint8]) -> Image:
    """Grey values (H, W) of a photo (H, W, 3)."""
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.float32)


def align_matches(
    photo0: Image,
    photo1: Image,
    points0: Floats,
    points1: Floats,
    affine: Floats,
    steps: tuple[float, float],
    options: AlignOptions,
) -> tuple[Floats, Floats]:
    """Positions (N, 2) in photo 1 of what photo 0 shows at points0 (N, 2), and correlations (N,) of patches.

    points1 (N, 2): where the network found them; affine (N, 2, 2): local maps from photo 0 to photo 1; steps:
    grid steps of both photos in pixels. Matches whose patches do not correlate, or that would move further
    than a match may be wrong, stay where they are with a correlation of nan.
    """
    found, similarity = points1.copy(), np.zeros(len(points1))
    if len(points1) == 0:
        return found, similarity
    zoom = float(np.median(np.sqrt(np.abs(np.linalg.det(affine)))))
    for scale0, scale1 in _levels(steps, zoom, options.coarsest_step):
        level0, level1 = _scaled(photo0, scale0, options.blur), _scaled(photo1, scale1, options.blur)
        factor0 = np.array(level0.shape[::-1]) / np.array(photo0.shape[::-1])
        factor1 = np.array(level1.shape[::-1]) / np.array(photo1.shape[::-1])
        template = _Template.of(level0, (points0 + 0.5) * factor0 - 0.5, options)
        moved, similarity = template.seek(
            level1,
            (found + 0.5) * factor1 - 0.5,
            (points1 + 0.5) * factor1 - 0.5,
            affine * factor1[:, None] / factor0[None, :],
            options.prior_error * steps[1] * float(factor1.mean()),
            options,
        )
        found = (moved + 0.5) / factor1 - 0.5
    near = np.linalg.norm(found - points1, axis=1) < options.max_move * steps[1]
    inside = (found >= 0).all(axis=1) & (found <= np.array(photo1.shape[::-1]) - 1).all(axis=1)
    good = near & inside & (similarity >= options.min_similarity)
    return np.where(good[:, None], found, points1), np.where(good, similarity, np.nan)


def _levels(steps: tuple[float, float], zoom: float, coarsest: float) -> list[tuple[float, float]]:
    """Scales of both photos, coarse to fine: from a grid step of `coarsest` pixels to the finest."""
    finest = min(1.0, zoom), min(1.0, 1 / max(zoom, 1e-6))  # the photo that shows more is made smaller
    step = max(steps[0] * finest[0], steps[1] * finest[1])
    halvings = max(0, round(float(np.log2(step / coarsest))))
    return [(finest[0] / 2**k, finest[1] / 2**k) for k in range(halvings, -1, -1)]


def _scaled(photo: Image, scale: float, blur: float) -> Image:
    if scale < 0.9:
        size = (max(1, round(photo.shape[1] * scale)), max(1, round(photo.shape[0] * scale)))
        photo = np.asarray(cv2.resize(photo, size, interpolation=cv2.INTER_AREA), np.float32)
    return np.asarray(cv2.GaussianBlur(photo, (0, 0), blur), np.float32)


@dataclass(frozen=True)
class _Template:
    """Patches of photo 0, and how they change when they are shifted and stretched."""

    around: Image  # (P, 2) positions in a patch
    weight: Image  # (P,) by which its pixels count, sum 1
    patches: Image  # (N, P) normalised
    slopes: tuple[Image, Image]  # (N, P) along x and y
    information: Image  # (N, 6, 6) of the pixels, for unit noise; see `_moments`

    @staticmethod
    def of(photo: Image, points: Floats, options: AlignOptions) -> _Template:
        side = np.arange(-options.radius, options.radius + 1, dtype=np.float32)
        around = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
        weight = np.exp(-(around**2).sum(axis=1) / (2 * (options.window * options.radius) ** 2))
        weight = (weight / weight.sum()).astype(np.float32)
        positions = points.astype(np.float32)[:, None] + around
        x, y = np.ascontiguousarray(positions[..., 0]), np.ascontiguousarray(positions[..., 1])
        patches, contrast = _normalised(_sample(photo, x, y), weight, options.min_contrast)
        kernel = np.array([[-0.5, 0.0, 0.5]], np.float32)  # central differences over one pixel
        along = [np.asarray(cv2.filter2D(photo, cv2.CV_32F, k), np.float32) for k in (kernel, kernel.T)]
        slopes = _sample(along[0], x, y) / contrast, _sample(along[1], x, y) / contrast
        return _Template(around, weight, patches, slopes, _information(slopes, around, weight))

    def seek(
        self, photo: Image, start: Floats, prior: Floats, affine: Floats, prior_error: float, options: AlignOptions
    ) -> tuple[Floats, Floats]:
        """Gauss-Newton steps for all patches at once: positions (N, 2) in `photo` and correlations (N,).

        start, prior: positions (N, 2) to begin with and those of the network; affine (N, 2, 2).
        """
        independent = options.independent / float((self.weight**2).sum())
        precision = np.array([prior_error] * 2 + [options.prior_stretch] * 4) ** -2.0
        found, current = start.copy(), affine.copy()
        unstretched = np.linalg.inv(affine)
        for _ in range(options.iterations):
            difference = self._seen(photo, found, current, options) - self.patches
            noise = np.maximum((difference * difference) @ self.weight, options.min_noise)
            evidence = (independent / noise)[:, None]
            # What the prior wants, as seen from photo 0, where steps are taken.
            back = np.linalg.inv(current)
            shift = np.einsum("nij,nj->ni", back, found - prior)
            stretch = (unstretched @ current - np.eye(2)).reshape(-1, 4)
            wanted = evidence * self._moments(difference) + precision * np.hstack([shift, stretch])
            matrix = evidence[..., None] * self.information + np.diag(precision)
            step = np.linalg.solve(matrix, wanted[..., None])[..., 0]
            step /= np.maximum(1.0, np.linalg.norm(step[:, :2], axis=1, keepdims=True))  # a pixel at most
            current = current @ np.linalg.inv(np.eye(2) + step[:, 2:].reshape(-1, 2, 2))
            found = found - np.einsum("nij,nj->ni", current, step[:, :2])
        return found, (self._seen(photo, found, current, options) * self.patches) @ self.weight.astype(np.float64)

    def _seen(self, photo: Image, points: Floats, affine: Floats, options: AlignOptions) -> Image:
        """Normalised patches (N, P) of a photo around points (N, 2), through affine maps (N, 2, 2)."""
        axes = affine.astype(np.float32) @ self.around.T  # (N, 2, P)
        axes += points.astype(np.float32)[..., None]
        values = _sample(photo, np.ascontiguousarray(axes[:, 0]), np.ascontiguousarray(axes[:, 1]))
        return _normalised(values, self.weight, options.min_contrast)[0]

    def _moments(self, difference: Image) -> Image:
        """(N, 6): a difference of patches (N, P) against shifts along x and y, then stretches xx, xy, yx, yy."""
        basis = np.column_stack([np.ones(len(self.around)), self.around]).astype(np.float32)
        weighted = difference * self.weight
        x, y = ((slope * weighted) @ basis for slope in self.slopes)
        return np.column_stack([x[:, 0], y[:, 0], x[:, 1:], y[:, 1:]])


def _information(slopes: tuple[Image, Image], around: Image, weight: Image) -> Image:
    """Weighted products (N, 6, 6) of how patches change, in the order of `_Template._moments`."""
    basis = np.column_stack([np.ones(len(around)), around]).astype(np.float32)
    products = (weight[:, None, None] * basis[:, :, None] * basis[:, None, :]).reshape(-1, 9)
    x, y = slopes
    blocks = [((a * b) @ products).reshape(-1, 3, 3) for a, b in ((x, x), (x, y), (y, y))]
    whole = np.block([[blocks[0], blocks[1]], [blocks[1].transpose(0, 2, 1), blocks[2]]])
    order = [0, 3, 1, 2, 4, 5]
    return whole[:, order][:, :, order]


def _sample(photo: Image, x: Image, y: Image) -> Image:
    """Grey values (N, P) at positions (N, P), bilinearly; beyond the edge the photo is mirrored."""
    values = np.empty(x.shape, np.float32)
    for begin in range(0, len(values), MOST_ROWS):
        rows = slice(begin, begin + MOST_ROWS)
        values[rows] = cv2.remap(photo, x[rows], y[rows], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return values


def _normalised(patches: Image, weight: Image, min_contrast: float) -> tuple[Image, Image]:
    """Patches (N, P) with weighted mean 0 and deviation 1, and the deviations (N, 1) that they had."""
    centred: Image = patches - (patches @ weight)[:, None]
    contrast: Image = np.maximum(np.sqrt((centred * centred) @ weight), np.float32(min_contrast))[:, None]
    return centred / contrast, contrast
