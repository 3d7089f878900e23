"""Dense points by COLMAP's multi-view stereo, which computes on CUDA only."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from coam.errors import ConfigError
from coam.images import load_image
from coam.sfm.journal import replacing


def require_dense_stereo() -> None:
    """One line where this pycolmap cannot compute dense points; call it before hours of matching."""
    import pycolmap

    if not pycolmap.has_cuda:
        raise ConfigError(
            "--dense needs a pycolmap with CUDA, and this one has none; install pycolmap-cuda12 in its "
            "place, or leave --dense out"
        )


def add_dense_points(output: str | Path, photos: str | Path) -> dict[str, Any]:
    """Dense points of the largest model of a finished model folder; gives its summary with their number.

    Writes sparse/0/dense.ply, so that a model that is built again loses the dense points of the old one. The
    workspace with the depth maps, dense/, is removed at the end.
    """
    require_dense_stereo()
    import pycolmap

    output, summary_path = Path(output), Path(output) / "summary.json"
    summary: dict[str, Any] = json.loads(summary_path.read_text())
    target = output / "sparse" / "0" / "dense.ply"
    if isinstance(summary["dense_points"], int) and target.is_file():
        return summary
    workspace = prepare_workspace(output / "sparse" / "0", Path(photos), output / "dense")
    pycolmap.patch_match_stereo(workspace)
    fusion = pycolmap.StereoFusionOptions()
    fusion.min_num_pixels = min(fusion.min_num_pixels, summary["registered_images"])
    fused = pycolmap.stereo_fusion(workspace / "fused.ply", workspace, options=fusion, output_type="ply")
    os.replace(workspace / "fused.ply", target)
    summary["dense_points"] = fused.num_points3D()
    with replacing(summary_path) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
    shutil.rmtree(workspace, ignore_errors=True)
    return summary


def prepare_workspace(model: Path, photos: Path, workspace: Path) -> Path:
    """Photos of a model without distortion, as COLMAP's stereo wants them; gives `workspace`.

    Photos are written upright first: the model's are, and COLMAP does not turn them by their EXIF.
    """
    import pycolmap
    from PIL import Image

    shutil.rmtree(workspace, ignore_errors=True)  # of a killed run
    reconstruction, upright = pycolmap.Reconstruction(model), workspace / "upright"
    for image_id in reconstruction.reg_image_ids():
        name = reconstruction.image(image_id).name
        (upright / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(load_image(photos / name).rgb).save(upright / name, quality=95)
    pycolmap.undistort_images(workspace, model, upright)
    shutil.rmtree(upright)
    return workspace
