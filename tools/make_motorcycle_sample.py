"""Make the bundled motorcycle pair from the copy in scikit-image (skimage.data.stereo_motorcycle).

    python tools/make_motorcycle_sample.py --out src/coam/samples/motorcycle

The pictures keep their 741x500 pixels (scikit-image already reduced the originals by 4) and become JPEGs; the
true disparity becomes a uint16 PNG in steps of 1/64 px, 0 where there is no truth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from skimage.data import stereo_motorcycle

STEPS_PER_PIXEL = 64  # as coam.samples.stereo reads it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to fill")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEGs")
    options = parser.parse_args()

    left, right, disparity = stereo_motorcycle()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, pixels in (("left", left), ("right", right)):
        path = options.out / f"{name}.jpg"
        Image.fromarray(pixels).save(path, quality=options.quality, subsampling=0, optimize=True)
    known = np.isfinite(disparity)
    steps = np.round(np.where(known, disparity, 0.0) * STEPS_PER_PIXEL)
    if known.any() and steps[known].min() < 1:
        raise SystemExit("a true disparity rounds to 0, which is the mark of unknown pixels")
    Image.fromarray(steps.astype(np.uint16)).save(options.out / "disparity.png", optimize=True)


if __name__ == "__main__":
    main()
