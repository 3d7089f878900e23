"""Matches of two photos, refined in the pixels of the photos: the last step, after all looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coam.geometry.local_affine import local_affine
from coam.images import RGB
from coam.images.mask import Mask, usable_at
from coam.images.patch_alignment import AlignOptions, align_matches, grey
from coam.types import Matches


def align(
    matches: Matches,
    photos: tuple[RGB, RGB],
    steps: tuple[float, float],
    options: AlignOptions,
    masks: tuple[Mask | None, Mask | None] = (None, None),
) -> Matches:
    """The matches, those of photo 1 at what photo 0 shows at points0; what does not look alike stays.

    Points of photo 0 do not move: they are grid positions, or keypoints that a caller gave. Where only those
    of photo 1 were given, they stay and photo 0 is searched. steps: grid steps of both photos in pixels;
    masks: usable pixels (H, W), which nothing leaves.
    """
    if len(matches) == 0:
        return matches
    first, second = (1, 0) if matches.grid1 is None and matches.grid0 is not None else (0, 1)
    points = (matches.points0, matches.points1)
    fixed, near = (points[side].astype(np.float64) for side in (first, second))
    found, _ = align_matches(
        grey(photos[first]),
        grey(photos[second]),
        fixed,
        near,
        local_affine(fixed, near),
        (steps[first], steps[second]),
        options,
    )
    moved = found.astype(np.float32)
    mask = masks[second]
    if mask is not None:
        moved = np.where(usable_at(mask, moved)[:, None], moved, points[second])
    return replace(matches, points0=moved) if second == 0 else replace(matches, points1=moved)
