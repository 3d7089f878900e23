"""transforms.json: a point seen by the model's cameras is seen at the same pixel by nerfstudio's rule."""

from __future__ import annotations

import json

import numpy as np

from coam.images import load_image
from coam.sfm.colmap_model import read_model
from coam.sfm.interchange.nerfstudio import export_nerfstudio


def test_points_project_where_they_were_seen(built, photos, tmp_path):
    target = export_nerfstudio(built[0] / "sparse" / "0", photos, tmp_path / "nerf", 300)
    assert sorted(p.name for p in target.iterdir()) == ["images", "sparse_pc.ply", "transforms.json"]
    content = json.loads((target / "transforms.json").read_text())
    model = read_model(built[0] / "sparse" / "0")
    frames = {frame["file_path"]: frame for frame in content["frames"]}
    assert set(frames) == {f"images/{image.name}" for image in model.images.values()}
    errors = []
    for image in model.images.values():
        frame = frames[f"images/{image.name}"]
        picture = load_image(target / frame["file_path"]).rgb
        assert picture.shape[:2] == (frame["h"], frame["w"])
        assert max(frame["w"], frame["h"]) <= 300
        world_from_camera = np.array(frame["transform_matrix"])
        for point in image.get_observation_points2D()[:50]:
            world = np.append(model.point3D(point.point3D_id).xyz, 1.0)
            x, y, z, _ = np.linalg.inv(world_from_camera) @ world
            assert z < 0  # OpenGL looks along -z
            pixel = np.array([frame["fl_x"] * x / -z + frame["cx"], -frame["fl_y"] * y / -z + frame["cy"]])
            flat = image.camera.cam_from_img(point.xy)[:2]
            expected = flat * [frame["fl_x"], frame["fl_y"]] + [frame["cx"], frame["cy"]]
            errors.append(np.linalg.norm(pixel - expected))
    assert np.median(errors) < 1.0
