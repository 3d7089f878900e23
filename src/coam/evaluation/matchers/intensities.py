"""Classical registration by intensities, as matchers: phase correlation, ECC, mutual information.

Each finds one transform of whole images. What it hands over are points of a grid over photo 0 with their
places under that transform, so that whatever is measured on matches is measured on it too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, import_extra
from coam.evaluation.matchers.baselines import read_grey
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec, keypoint_matches
from coam.geometry.coordinates import point_grid
from coam.geometry.homography import apply_homography
from coam.types import Matches

Grey = npt.NDArray[np.float32]  # (H, W)
Array = npt.NDArray[np.float64]
GRID = 20  # points a side of what is handed over
EXTRA = "intensities"


def intensity_spec(name: str, device: str, options: dict[str, Any]) -> MatcherSpec:
    """The spec of phase-correlation, ecc or mutual-information; they run on the CPU and take no options."""
    options = {key: value for key, value in options.items() if key != "max_matches"}
    if options:
        raise ConfigError(f"{name} takes no options from here ({', '.join(options)})")
    find = METHODS[name]

    def match(path0: Path, path1: Path) -> Matches:
        grey0, grey1 = (read_grey(path).astype(np.float32) for path in (path0, path1))
        return _as_matches(find(grey0, grey1), grey0, grey1)

    return MatcherSpec(name, {"method": name, "version": 1}, lambda: FunctionMatcher(match))


def _as_matches(matrix: Array | None, grey0: Grey, grey1: Grey) -> Matches:
    """A grid over photo 0 and its places in photo 1, where these lie inside; none without a matrix (3, 3)."""
    (height0, width0), (height1, width1) = grey0.shape, grey1.shape
    points = point_grid((width0, height0), GRID)
    places = np.full_like(points, np.inf) if matrix is None else apply_homography(matrix, points)
    inside = ((places >= 0) & (places <= [width1 - 1, height1 - 1])).all(axis=1)
    points0, points1 = points[inside].astype(np.float32), places[inside].astype(np.float32)
    scores = np.ones(len(points0), np.float32)
    return keypoint_matches(points0, points1, scores, (width0, height0), (width1, height1))


def phase_correlation(grey0: Grey, grey1: Grey) -> Array | None:
    """Similarity 0 -> 1: turn and zoom by phase correlation of the spectra in log-polar coordinates (Reddy
    and Chatterji 1996), then the shift; scikit-image.
    """
    import cv2

    phase = import_extra("skimage.registration", EXTRA).phase_cross_correlation
    side = max(*grey0.shape, *grey1.shape)
    square0, square1 = (_centred_square(grey, side) for grey in (grey0, grey1))
    window = np.outer(np.hanning(side), np.hanning(side)).astype(np.float32)
    centre = (side / 2, side / 2)

    def spectrum(square: Grey) -> Grey:
        size = np.fft.fftshift(np.abs(np.fft.fft2((square - square.mean()) * window))).astype(np.float32)
        flags = cv2.INTER_LINEAR | cv2.WARP_POLAR_LOG
        return np.asarray(cv2.warpPolar(np.log1p(size), (side, 360), centre, side / 2, flags))

    (turn, stretch), _, _ = phase(spectrum(square1)[:180], spectrum(square0)[:180], upsample_factor=10)
    zoom = float(np.exp(-stretch / (side / np.log(side / 2))))
    if not 0.2 < zoom < 5:
        return None
    best: tuple[float, Array] | None = None
    for degrees in (turn, turn + 180):  # a spectrum does not tell one from the other
        turned = cv2.getRotationMatrix2D(centre, -float(degrees), zoom)
        moved = cv2.warpAffine(square0, turned, (side, side))
        (down, across), error, _ = phase(square1, moved, upsample_factor=10)
        if best is None or error < best[0]:
            shift = np.array([[1, 0, across], [0, 1, down], [0, 0, 1.0]])
            best = float(error), shift @ np.vstack([turned, [0, 0, 1]])
    assert best is not None
    to0, to1 = (_to_square(grey, side) for grey in (grey0, grey1))
    return np.asarray(np.linalg.inv(to1) @ best[1] @ to0)


def _to_square(grey: Grey, side: int) -> Array:
    matrix = np.eye(3)
    matrix[:2, 2] = (side - grey.shape[1]) // 2, (side - grey.shape[0]) // 2
    return matrix


def _centred_square(grey: Grey, side: int) -> Grey:
    square = np.full((side, side), grey.mean(), np.float32)
    left, top = _to_square(grey, side)[:2, 2].astype(int)
    square[top : top + grey.shape[0], left : left + grey.shape[1]] = grey
    return square


def ecc(grey0: Grey, grey1: Grey) -> Array | None:
    """Homography 0 -> 1 of the greatest enhanced correlation coefficient (Evangelidis and Psarakis 2008),
    from coarse to fine; OpenCV. None where it does not converge.
    """
    import cv2

    matrix = np.eye(3, dtype=np.float32)
    stop = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 200, 1e-5)
    for level in (4, 2, 1):
        small0, small1 = (
            cv2.resize(grey, None, fx=1 / level, fy=1 / level, interpolation=cv2.INTER_AREA)
            for grey in (grey0, grey1)
        )
        scale = np.diag([1 / level, 1 / level, 1.0])
        start = (scale @ matrix @ np.linalg.inv(scale)).astype(np.float32)
        everywhere = np.full(small1.shape, 255, np.uint8)
        try:
            # The warp takes pixels of the template (photo 0) to the input (photo 1).
            _, found = cv2.findTransformECC(small0, small1, start, cv2.MOTION_HOMOGRAPHY, stop, everywhere, 5)
        except cv2.error:
            return None
        matrix = (np.linalg.inv(scale) @ found @ scale).astype(np.float32)
    return np.asarray(matrix, np.float64)


def mutual_information(grey0: Grey, grey1: Grey) -> Array | None:
    """Affine map 0 -> 1 of the greatest mutual information (Mattes), from coarse to fine; SimpleITK."""
    itk = import_extra("SimpleITK", EXTRA)
    itk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    fixed, moving = itk.GetImageFromArray(grey0), itk.GetImageFromArray(grey1)
    start = itk.CenteredTransformInitializer(
        fixed, moving, itk.AffineTransform(2), itk.CenteredTransformInitializerFilter.GEOMETRY
    )
    method = itk.ImageRegistrationMethod()
    method.SetMetricAsMattesMutualInformation(numberOfHistogramBins=50)
    method.SetMetricSamplingStrategy(method.RANDOM)
    method.SetMetricSamplingPercentage(0.2, seed=1)
    method.SetInterpolator(itk.sitkLinear)
    method.SetOptimizerAsGradientDescent(1.0, 200, 1e-6, 10, method.EachIteration)
    method.SetOptimizerScalesFromPhysicalShift()
    method.SetShrinkFactorsPerLevel([4, 2, 1])
    method.SetSmoothingSigmasPerLevel([2, 1, 0])
    method.SetInitialTransform(start, inPlace=False)
    try:
        found = method.Execute(fixed, moving)
    except RuntimeError:  # all samples fell outside: it ran away
        return None
    # From points of photo 0 to points of photo 1.
    corners = np.array([[0, 0], [grey0.shape[1] - 1, 0], [0, grey0.shape[0] - 1]], np.float64)
    moved = np.array([found.TransformPoint(corner.tolist()) for corner in corners])
    from coam.geometry.motions import fit_affine

    return fit_affine(corners, moved)


METHODS: dict[str, Callable[[Grey, Grey], Array | None]] = {
    "phase-correlation": phase_correlation,
    "ecc": ecc,
    "mutual-information": mutual_information,
}
