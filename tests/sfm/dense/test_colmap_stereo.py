"""What surrounds COLMAP's stereo, which needs CUDA; photos without distortion, upright."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from coam.cli import build_app
from coam.errors import ConfigError
from coam.images import load_image
from coam.sfm.dense.dense_points import add_dense_points
from coam.sfm.dense.undistorted import undistort_photos

pycolmap = pytest.importorskip("pycolmap")
without_cuda = pytest.mark.skipif(pycolmap.has_cuda, reason="this pycolmap computes dense points")


@without_cuda
def test_without_cuda_one_line_before_any_work(photos, tmp_path):
    from typer.testing import CliRunner

    line = ["sfm", str(photos), "-o", str(tmp_path / "m"), "--dense", "--dense-by", "colmap"]
    result = CliRunner().invoke(build_app(), line)
    assert result.exit_code == 2
    line = result.stderr.strip().splitlines()[-1]
    assert "--dense-by colmap needs a pycolmap with CUDA, and this one has none" in line
    assert not (tmp_path / "m").exists()


@without_cuda
def test_a_finished_model_is_left_as_it_is(built, photos):
    before = (built[0] / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match="--dense-by colmap needs a pycolmap with CUDA"):
        add_dense_points(built[0], photos, None, "colmap")
    assert (built[0] / "summary.json").read_bytes() == before
    assert json.loads(before)["dense_points"] == "not computed"


def test_photos_are_undistorted_upright(built, photos, tmp_path):
    """One photo lies on its side in its file and says so in its EXIF: the workspace has it upright."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90 degrees
    with Image.open(folder / "view00.png") as upright:
        upright.transpose(Image.Transpose.ROTATE_90).save(folder / "view00.png", exif=exif)
    workspace = undistort_photos(built[0] / "sparse" / "0", folder, tmp_path / "dense")
    written = sorted(path.name for path in (workspace / "images").iterdir())
    assert written == ["view00.png", "view01.png", "view03.png", "view04.png", "view06.png"]
    assert not (workspace / "upright").exists()
    assert (workspace / "stereo" / "patch-match.cfg").is_file()
    flat = pycolmap.Reconstruction(workspace / "sparse")
    assert {camera.model_name for camera in flat.cameras.values()} == {"PINHOLE"}
    height, width = load_image(workspace / "images" / "view00.png").rgb.shape[:2]
    assert (width, height) == pytest.approx((400, 304), abs=8)
    middle = np.s_[100:200, 150:250]
    own = load_image(photos / "view00.png").rgb[middle].astype(float)
    seen = load_image(workspace / "images" / "view00.png").rgb[middle].astype(float)
    assert np.corrcoef(own.ravel(), seen.ravel())[0, 1] > 0.7
