"""COLMAP's own dense stereo, for whoever has a pycolmap with CUDA."""

from __future__ import annotations

import shutil
from pathlib import Path

from coam.errors import ConfigError
from coam.sfm.dense.undistorted import undistort_photos
from coam.sfm.model_folder import ModelFolder
from coam.store.atomic import atomic_write


def require_dense_stereo() -> None:
    """One line where this pycolmap cannot compute dense points; call it before hours of matching."""
    import pycolmap

    if not pycolmap.has_cuda:
        raise ConfigError(
            "--dense-by colmap needs a pycolmap with CUDA, and this one has none; install pycolmap-cuda12 in "
            "its place, or leave --dense-by out: --dense alone needs no CUDA"
        )


def fuse_with_colmap(files: ModelFolder, photos: Path) -> int:
    """COLMAP's patch match stereo and fusion of the largest model; gives the number of points."""
    import pycolmap

    shutil.rmtree(files.dense, ignore_errors=True)  # of a killed run
    workspace = undistort_photos(files.model, photos, files.dense)
    pycolmap.patch_match_stereo(workspace)
    fusion = pycolmap.StereoFusionOptions()
    fusion.min_num_pixels = min(fusion.min_num_pixels, pycolmap.Reconstruction(files.model).num_reg_images())
    fused = pycolmap.stereo_fusion(workspace / "fused.ply", workspace, options=fusion, output_type="ply")
    with atomic_write(files.dense_points) as temporary:
        shutil.move(workspace / "fused.ply", temporary)
    return int(fused.num_points3D())
