"""The photos of a model without distortion: a COLMAP workspace of pinhole cameras."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coam.images import load_image
from coam.sfm.colmap_model import quiet_colmap, read_model, registered_images


def undistort_photos(
    model: Path,
    photos: Path,
    workspace: Path,
    size: int | None = None,
    turns: Mapping[str, int] | None = None,
) -> Path:
    """Write images/, sparse/ (their model) and what COLMAP's stereo wants; gives `workspace`.

    Photos are written as their EXIF says first: the model's are so, and COLMAP does not turn them. size: long
    side in pixels to which larger photos are shrunk. turns: quarters, counter-clockwise, by which pictures
    are turned at the end; sparse/ knows nothing of it.
    """
    import pycolmap
    from PIL import Image

    quiet_colmap()
    workspace.mkdir(parents=True, exist_ok=True)
    upright = workspace / "upright"
    for name in registered_images(read_model(model)):
        (upright / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(load_image(photos / name).rgb).save(upright / name, quality=95)
    options = pycolmap.UndistortCameraOptions()
    if size is not None:
        options.max_image_size = size
    pycolmap.undistort_images(workspace, model, upright, jpeg_quality=95, undistort_options=options)
    shutil.rmtree(upright)
    for name, quarters in (turns or {}).items():
        picture = workspace / "images" / name
        if picture.is_file():
            rgb = load_image(picture).rgb
            Image.fromarray(np.ascontiguousarray(np.rot90(rgb, quarters))).save(picture, quality=95)
    return workspace
