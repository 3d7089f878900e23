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

from dataclasses import dataclass, replace
from typing import ClassVar

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Image = npt.NDArray[np.uint8]  # (H, W) grey values
Values = npt.NDArray[np.float32]
AT_ONCE = 8192  # matches: bounds memory, and OpenCV counts rows of what it samples with 15 bits
LARGEST_STRETCH = 0.3  # of a step: one that stretches a patch more has lost it
WORTH_COPYING = 0.8  # of the patches: while more of them still move, leaving out the others costs more


@dataclass(frozen=True)
class AlignOptions:
    """How matches are aligned.

    `prior_error`, `clip`, `radius` and `blur` were chosen on matches with exact truth: the network's between
    views of the courtyard by day and night, and displaced ones of the Middlebury pair and of 35 photos under
    made homographies (tools/make_warped_benchmark.py). Near these values little changes.
    """

    radius: int = 6  # pixels around a match that are compared
    blur: float = 0.7  # pixels, against noise and the limits of bilinear sampling
    iterations: int = 5  # Gauss-Newton steps at every scale, at most
    settled: float = 0.02  # pixels: after a step shorter than this a match is left as it is
    settled_before: float = 0.1  # pixels: the same at the scales before the finest
    min_similarity: float = 0.7  # correlation of the two patches; below it the match stays where it was
    max_move: float = 0.5  # grid steps: what moves further has found something else
    coarsest_step: float = 4.0  # pixels: grid step at the coarsest scale, the resolution that the network saw
    prior_error: float = 0.12  # grid steps: standard deviation of the network's positions
    prior_stretch: float = 0.05  # standard deviation of the local maps' entries
    independent: float = 0.25  # of the pixels of a patch: neighbours share their noise
    min_noise: float = 0.02  # variance, of the patch's own: no two photos agree better
    clip: float = 1.5  # deviations of the difference of patches: a pixel that differs more counts no more
    min_contrast: float = 1.0  # grey values: below this a patch is noise
    window: float = 0.6  # radii: standard deviation of the Gaussian by which the pixels of a patch count

    RECORDED: ClassVar[str] = "PatchAlignment(radius, blur, iterations, min_similarity, max_move)"


def grey(rgb: npt.NDArray[np.uint8]) -> Image:
    """Grey values (H, W) of a photo (H, W, 3)."""
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.uint8)


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
    scales = _levels(steps, zoom, options.coarsest_step)
    for scale0, scale1 in scales:
        level0, level1 = _scaled(photo0, scale0, options.blur), _scaled(photo1, scale1, options.blur)
        factor0 = np.array(level0.shape[::-1]) / np.array(photo0.shape[::-1])
        factor1 = np.array(level1.shape[::-1]) / np.array(photo1.shape[::-1])
        error = options.prior_error * steps[1] * float(factor1.mean())
        settled = options.settled if (scale0, scale1) == scales[-1] else options.settled_before
        for begin in range(0, len(points1), AT_ONCE):
            rows = slice(begin, begin + AT_ONCE)
            prior = _Prior(
                (points1[rows] + 0.5) * factor1 - 0.5,
                affine[rows] * factor1[:, None] / factor0[None, :],
                np.array([error] * 2 + [options.prior_stretch] * 4),
            )
            template = _Template.of(level0, (points0[rows] + 0.5) * factor0 - 0.5, options)
            start = (found[rows] + 0.5) * factor1 - 0.5
            moved, similarity[rows] = template.seek(level1, start, prior, settled, options)
            found[rows] = (moved + 0.5) / factor1 - 0.5
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
        photo = np.asarray(cv2.resize(photo, size, interpolation=cv2.INTER_AREA), np.uint8)
    return np.asarray(cv2.GaussianBlur(photo, (0, 0), blur), np.uint8)


@dataclass(frozen=True)
class _Prior:
    """What is known of matches before their pixels are compared."""

    points: Floats  # (N, 2) in photo 1, as the network found them
    affine: Floats  # (N, 2, 2) local maps of the neighbours
    error: Floats  # (6,) standard deviations: of points along x and y, of the maps' entries

    def of_matches(self, index: npt.NDArray[np.int64]) -> _Prior:
        """That of some matches."""
        return replace(self, points=self.points[index], affine=self.affine[index])

    def missed(self, found: Floats, current: Floats) -> Floats:
        """How far (N, 6) positions (N, 2) and maps (N, 2, 2) are from it, as seen from photo 0."""
        shift = (_inverse(current) @ (found - self.points)[..., None])[..., 0]
        stretch = (_inverse(self.affine) @ current - np.eye(2)).reshape(-1, 4)
        return np.hstack([shift, stretch])


@dataclass(frozen=True)
class _Template:
    """Patches of photo 0, and how they change when they are shifted and stretched."""

    around: Values  # (P, 2) positions in a patch
    weight: Values  # (P,) by which its pixels count, sum 1
    patches: Values  # (N, P) normalised
    texture: Values  # (N,) 1; less where there is too little contrast to normalise
    slopes: tuple[Values, Values]  # (N, P) along x and y
    information: Values  # (N, 6, 6) of the pixels, for unit noise; see `_moments`

    @staticmethod
    def of(photo: Image, points: Floats, options: AlignOptions) -> _Template:
        around = _square(options.radius)
        weight = np.exp(-(around**2).sum(axis=1) / (2 * (options.window * options.radius) ** 2))
        weight = (weight / weight.sum()).astype(np.float32)
        # One pixel more on every side, for central differences.
        wider = points.astype(np.float32)[:, None] + _square(options.radius + 1)
        side = 2 * options.radius + 3
        values = _sample(photo, wider[..., 0], wider[..., 1]).reshape(-1, side, side)
        patches, contrast = _normalised(
            values[:, 1:-1, 1:-1].reshape(-1, len(around)), weight, options.min_contrast
        )
        along_x, along_y = (
            (values[:, 1:-1, 2:] - values[:, 1:-1, :-2]).reshape(-1, len(around)),
            (values[:, 2:, 1:-1] - values[:, :-2, 1:-1]).reshape(-1, len(around)),
        )
        slopes = along_x / (2 * contrast), along_y / (2 * contrast)
        texture = (patches * patches) @ weight
        return _Template(around, weight, patches, texture, slopes, _information(slopes, around, weight))

    def of_matches(self, index: npt.NDArray[np.int64]) -> _Template:
        """The templates of some matches."""
        slopes = self.slopes[0][index], self.slopes[1][index]
        patches, texture, information = (
            each[index] for each in (self.patches, self.texture, self.information)
        )
        return replace(self, patches=patches, texture=texture, slopes=slopes, information=information)

    def seek(
        self, photo: Image, start: Floats, prior: _Prior, settled: float, options: AlignOptions
    ) -> tuple[Floats, Floats]:
        """Gauss-Newton steps for all patches at once: positions (N, 2) in `photo` and correlations (N,).

        start: positions (N, 2) to begin with; settled: pixels of a step after which a patch is left alone.
        """
        found, current, likeness = start.copy(), prior.affine.copy(), np.zeros(len(start))
        moving, still = self, np.arange(len(start))
        for _ in range(options.iterations):
            step, likeness[still] = moving.step(photo, found[still], current[still], prior, options)
            current[still] = current[still] @ _inverse(np.eye(2) + step[:, 2:].reshape(-1, 2, 2))
            found[still] -= (current[still] @ step[:, :2, None])[..., 0]
            going_on = np.flatnonzero(np.linalg.norm(step[:, :2], axis=1) > settled)
            if len(going_on) == 0:
                break
            if len(going_on) < WORTH_COPYING * len(still):
                moving, prior, still = (
                    moving.of_matches(going_on),
                    prior.of_matches(going_on),
                    still[going_on],
                )
        return found, likeness

    def step(
        self, photo: Image, found: Floats, current: Floats, prior: _Prior, options: AlignOptions
    ) -> tuple[Floats, Floats]:
        """One step (N, 6), shift and stretch as seen from photo 0, and correlations (N,) before it.

        found: positions (N, 2); current: maps (N, 2, 2).
        """
        difference = self._seen(photo, found, current, options) - self.patches
        missed = (difference * difference) @ self.weight
        # What another surface covers, or a lamp lights, in one photo only must not pull (Huber's loss).
        limit = options.clip * np.sqrt(missed)[:, None]
        difference = np.clip(difference, -limit, limit)
        evidence = options.independent / float((self.weight**2).sum()) / np.maximum(missed, options.min_noise)
        wanted = evidence[:, None] * self._moments(difference)
        wanted += prior.missed(found, current) / prior.error**2
        matrix = evidence[:, None, None] * self.information + np.diag(prior.error**-2)
        step = np.asarray(np.linalg.solve(matrix, wanted[..., None])[..., 0], np.float64)
        step /= np.maximum(1.0, np.linalg.norm(step[:, :2], axis=1, keepdims=True))  # a pixel at most
        step[:, 2:] = np.clip(step[:, 2:], -LARGEST_STRETCH, LARGEST_STRETCH)
        return step, self.texture - missed / 2  # the correlation, since both patches have deviation 1

    def _seen(self, photo: Image, points: Floats, affine: Floats, options: AlignOptions) -> Values:
        """Normalised patches (N, P) of a photo around points (N, 2), through affine maps (N, 2, 2)."""
        axes = affine.astype(np.float32) @ self.around.T  # (N, 2, P)
        axes += points.astype(np.float32)[..., None]
        return _normalised(_sample(photo, axes[:, 0], axes[:, 1]), self.weight, options.min_contrast)[0]

    def _moments(self, difference: Values) -> Values:
        """(N, 6): differences of patches (N, P) against shifts along x, y and stretches xx, xy, yx, yy."""
        basis = np.column_stack([np.ones(len(self.around)), self.around]).astype(np.float32)
        weighted = difference * self.weight
        x, y = ((slope * weighted) @ basis for slope in self.slopes)
        return np.column_stack([x[:, 0], y[:, 0], x[:, 1:], y[:, 1:]])


def _square(radius: int) -> Values:
    """Pixels (P, 2) around the one in the middle, row by row."""
    side = np.arange(-radius, radius + 1, dtype=np.float32)
    return np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)


def _information(slopes: tuple[Values, Values], around: Values, weight: Values) -> Values:
    """Weighted products (N, 6, 6) of how patches change, in the order of `_Template._moments`."""
    basis = np.column_stack([np.ones(len(around)), around]).astype(np.float32)
    products = (weight[:, None, None] * basis[:, :, None] * basis[:, None, :]).reshape(-1, 9)
    x, y = slopes
    blocks = [((a * b) @ products).reshape(-1, 3, 3) for a, b in ((x, x), (x, y), (y, y))]
    whole = np.block([[blocks[0], blocks[1]], [blocks[1].transpose(0, 2, 1), blocks[2]]])
    order = [0, 3, 1, 2, 4, 5]
    return whole[:, order][:, :, order]


def _inverse(matrices: Floats) -> Floats:
    """Inverses (N, 2, 2): faster than LAPACK one by one. Of a singular one not finite: its match stays."""
    a, b, c, d = matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 0], matrices[:, 1, 1]
    adjugate = np.stack([np.stack([d, -b], axis=-1), np.stack([-c, a], axis=-1)], axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(adjugate / (a * d - b * c)[:, None, None])


def _sample(photo: Image, x: Values, y: Values) -> Values:
    """Grey values (N, P) at positions (N, P), bilinearly; beyond the edge the photo is mirrored."""
    at = np.ascontiguousarray(x), np.ascontiguousarray(y)
    values = cv2.remap(photo, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(values, np.float32)


def _normalised(patches: Values, weight: Values, min_contrast: float) -> tuple[Values, Values]:
    """Patches (N, P) with weighted mean 0 and deviation 1, and the deviations (N, 1) that they had."""
    centred: Values = patches - (patches @ weight)[:, None]
    contrast: Values = np.maximum(np.sqrt((centred * centred) @ weight), np.float32(min_contrast))[:, None]
    return centred / contrast, contrast
