"""Photo 1 warped onto photo 0 by a homography: overlays by blending, checkerboard and flicker."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ConfigError, DataError
from coam.geometry.homography import scaled_homography
from coam.geometry.robust import RansacOptions, estimate_homography
from coam.geometry.two_view_models import Homography
from coam.types import Matches
from coam.viz.canvas import fitted, photos_of, resize
from coam.viz.colours import ByteImage

_RANSAC_THRESHOLD = 0.008  # of the longer side of photo 1: scenes are not planes, so the fit may be loose
_MIN_INLIERS = 8  # four always fit


@dataclass(frozen=True)
class Overlay:
    """Two photos in one frame."""

    photo0: ByteImage  # (H, W, 3)
    warped1: ByteImage  # (H, W, 3), black outside photo 1
    inside: npt.NDArray[np.bool_]  # (H, W) where photo 1 has pixels


@dataclass(frozen=True)
class AlignedPair(Overlay):
    """Photo 1 warped into the frame of photo 0 by a homography fitted to the matches."""

    homography: npt.NDArray[np.float64]  # (3, 3) original pixels of photo 0 -> original pixels of photo 1
    inliers: npt.NDArray[np.bool_]  # (N,) matches that agree with it


def align(
    matches: Matches,
    images: tuple[Any, Any] | None = None,
    *,
    homography: Homography | None = None,
    longest: int = 1000,
) -> AlignedPair:
    """Warp photo 1 onto photo 0, whose longer side becomes `longest`, by one homography fitted to `matches`.

    homography: the one to use; by default it is fitted loosely, as scenes are not planes.
    """
    photo0, photo1 = photos_of(matches, images)
    fit = homography
    if fit is None:
        options = RansacOptions(threshold=max(3.0, _RANSAC_THRESHOLD * max(matches.size1)))
        fit = estimate_homography(matches.points0, matches.points1, options)
    if fit is None or int(fit.inliers.sum()) < _MIN_INLIERS:
        raise DataError(
            f"these photos cannot be aligned: fewer than {_MIN_INLIERS} matches agree on one homography"
        )
    shown0 = fitted(matches.size0, longest)
    shown1 = fitted(matches.size1, longest)
    scale0, scale1 = (
        (shown[0] / size[0], shown[1] / size[1])
        for shown, size in ((shown0, matches.size0), (shown1, matches.size1))
    )
    matrix = scaled_homography(fit.matrix, scale0, scale1)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    small1 = resize(photo1, shown1)
    warped = np.asarray(cv2.warpPerspective(small1, matrix, shown0, flags=flags), dtype=np.uint8)
    covered = cv2.warpPerspective(np.full(small1.shape[:2], 255, np.uint8), matrix, shown0, flags=flags)
    return AlignedPair(resize(photo0, shown0), warped, covered > 127, fit.matrix, fit.inliers)


def draw_aligned(
    pair: Overlay, mode: Literal["checkerboard", "blend"] = "checkerboard", *, squares: int = 8
) -> Image.Image:
    """Both photos in one picture: alternating squares (`squares` along the longer side), or their mean."""
    if mode == "checkerboard":
        height, width = pair.inside.shape
        side = max(1, round(max(width, height) / squares))
        row, column = np.arange(height) // side, np.arange(width) // side
        second = ((row[:, None] + column[None, :]) % 2 == 1)[..., None]
        return Image.fromarray(np.where(second & pair.inside[..., None], pair.warped1, pair.photo0))
    if mode == "blend":
        mean = np.asarray(cv2.addWeighted(pair.photo0, 0.5, pair.warped1, 0.5, 0), dtype=np.uint8)
        return Image.fromarray(np.where(pair.inside[..., None], mean, pair.photo0 // 2))
    raise ConfigError(f"mode {mode!r} does not exist; choose checkerboard or blend")


def flicker_frames(pair: Overlay) -> tuple[Image.Image, Image.Image]:
    """Photo 0, and photo 1 in its frame; where photo 1 has no pixels both show photo 0, darkened."""
    dark = pair.photo0 // 3
    inside = pair.inside[..., None]
    return (
        Image.fromarray(np.where(inside, pair.photo0, dark)),
        Image.fromarray(np.where(inside, pair.warped1, dark)),
    )


def flicker_animation(
    pair: Overlay, file_format: Literal["GIF", "WEBP"] = "GIF", *, milliseconds: int = 600
) -> bytes:
    """The bytes of an endless animation of the two frames in turn; what stands still is matched right."""
    first, second = flicker_frames(pair)
    buffer = io.BytesIO()
    first.save(buffer, file_format, save_all=True, append_images=[second], duration=milliseconds, loop=0)
    return buffer.getvalue()
