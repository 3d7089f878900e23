"""Make the bundled photos of a town and of a box from OpenCV's samples (Debian's package opencv-doc).

    apt-get download opencv-doc && dpkg-deb -x opencv-doc_*.deb opencv-doc
    DATA=opencv-doc/usr/share/doc/opencv-doc/examples/data
    python tools/make_opencv_samples.py $DATA --out src/coam/samples/opencv

JPEGs are copied as they are; the PNGs become JPEGs, to be small.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from PIL import Image

COPIED = ("aero1.jpg", "aero3.jpg")
CONVERTED = ("box.png", "box_in_scene.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder samples/data of OpenCV")
    parser.add_argument("--out", type=Path, required=True, help="folder to fill")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEGs made of PNGs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(options.data / name, options.out / name)
    for name in CONVERTED:
        target = (options.out / name).with_suffix(".jpg")
        Image.open(options.data / name).convert("L").save(target, quality=options.quality, optimize=True)


if __name__ == "__main__":
    main()
