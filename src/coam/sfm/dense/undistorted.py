"""The photos of a model without distortion: a COLMAP workspace of pinhole cameras."""

from __future__ import annotations

import shutil
from pathlib import Path

from coam.images import load_image
from coam.sfm.colmap_model import quiet_colmap, read_model, registered_images


def undistort_photos(model: Path, photos: Path, workspace: Path, size: int | None = None) -> Path:
    """Write images/, sparse/ (their model) and what COLMAP's stereo wants; gives `workspace`.

    Photos are written upright first: the model's are, and COLMAP does not turn them by their EXIF. size: long
    side in pixels to which larger photos are shrunk.
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
    return workspace
