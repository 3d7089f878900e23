from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from coam.sfm.dense.views import View
from coam.store.documents import write_sealed_json
from coam.warp import Warp, WarpField
from coam.warp.field import map_positions
from support.toy_scene import Scene

pycolmap = pytest.importorskip("pycolmap")


def view_of(scene: Scene, index: int) -> View:
    """A photo of the toy scene as it truly is."""
    k = scene.calibration
    return View(
        scene.names[index],
        Path(scene.names[index]),
        scene.size,
        (k[0, 0], k[1, 1]),
        (k[0, 2], k[1, 2]),
        scene.rotations[index],
        scene.translations[index],
    )


def true_depth(scene: Scene, index: int, map_size: tuple[int, int] | None = None) -> np.ndarray:
    """Depth (h, w) of a photo of the toy scene; nan where it shows nothing."""
    map_size = map_size or scene.size
    pixels = map_positions(map_size, scene.size).reshape(-1, 2).astype(float)
    world = scene.surface(index, pixels)
    local = world @ scene.rotations[index].T + scene.translations[index]
    return local[:, 2].reshape(map_size[1], map_size[0])


def distance_to_surface(scene: Scene, world: np.ndarray) -> np.ndarray:
    """Distance (N,) of points (N, 3) from the nearest of the scene's planes."""
    return np.min([np.abs(world @ np.array(n) / np.linalg.norm(n) - o) for n, o, _ in scene.planes], axis=0)


@dataclass
class WarpOracle:
    """Dense warps from true geometry, with smooth errors of a pixel, strays, and what is hidden uncertain."""

    scene: Scene
    noise: float = 0.7  # pixels
    strays: float = 0.1
    calls: list[tuple[str, str]] = field(default_factory=list)
    config: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(resolution=240))

    @property
    def fingerprint(self) -> str:
        return f"warps {self.scene} {self.noise} {self.strays}"

    def prepare(self, source: object) -> int:
        return self.scene.names.index(Path(str(source)).name)

    def warp(self, image0: int, image1: int, size: int | None = None) -> Warp:
        self.calls.append((self.scene.names[image0], self.scene.names[image1]))
        return Warp(self._way(image0, image1, size), self._way(image1, image0, size))

    def _way(self, a: int, b: int, side: int | None) -> WarpField:
        scene = self.scene
        width, height = scene.size
        side = side or width
        map_size = (side, round(height * side / width))
        generator = np.random.default_rng([a, b])
        pixels = map_positions(map_size, scene.size).reshape(-1, 2).astype(float)
        world = scene.surface(a, pixels)
        places = scene.project(b, world)
        seen = np.isfinite(places).all(axis=1)
        back = scene.surface(b, np.where(seen[:, None], places, 0.0))
        seen &= np.linalg.norm(np.nan_to_num(back - world, nan=9.0), axis=1) < 1e-3
        seen &= ((places > 0) & (places < np.array(scene.size) - 1)).all(axis=1)
        places = np.where(seen[:, None], places, generator.uniform(0, width, places.shape))
        places += generator.normal(0, self.noise, places.shape)
        stray = generator.random(len(places)) < self.strays
        places[stray] = generator.uniform(0, 1, (int(stray.sum()), 2)) * scene.size
        certainty = np.where(seen, 0.9, 0.05).reshape(map_size[::-1]).astype(np.float32)
        points = np.clip(places, 0, np.array(scene.size) - 1).reshape(*map_size[::-1], 2).astype(np.float32)
        return WarpField(points, certainty, scene.size, scene.size)


@pytest.fixture(scope="session")
def room() -> Scene:
    return Scene(count=6, size=(240, 184), focal=228.0)


@pytest.fixture(scope="session")
def true_folder(room, tmp_path_factory) -> tuple[Path, Path]:
    """A model folder with the true poses of all photos, and the photos."""
    from coam.sfm.cameras import camera_from_spec
    from coam.sfm.model_folder import ModelFolder

    photos = room.write_photos(tmp_path_factory.mktemp("all-photos"))
    files = ModelFolder(tmp_path_factory.mktemp("true-model"))
    model = pycolmap.Reconstruction()
    camera = camera_from_spec("SIMPLE_PINHOLE 240 184 228 120 92")
    camera.camera_id = 1
    model.add_camera_with_trivial_rig(camera)
    generator = np.random.default_rng(0)
    world = room.surface(3, generator.uniform(0, room.size, (400, 2)))
    world = world[np.isfinite(world).all(axis=1)]
    tracks = [pycolmap.Track() for _ in world]
    for index, name in enumerate(room.names):
        places = room.project(index, world)
        inside = ((places > 0) & (places < np.array(room.size) - 1)).all(axis=1)
        keypoints = places[inside] + 0.5
        for row, point in enumerate(np.flatnonzero(inside)):
            tracks[point].add_element(index + 1, row)
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(room.rotations[index]), room.translations[index])
        image = pycolmap.Image(name=name, camera_id=1, image_id=index + 1, keypoints=keypoints)
        model.add_image_with_trivial_frame(image, pose)
    for point, track in zip(world, tracks, strict=True):
        model.add_point3D(point, track, np.zeros(3, np.uint8))
    files.model.mkdir(parents=True)
    model.write(files.model)
    summary = {"registered_images": 6, "verified_pairs": 15, "dense_points": "not computed", "files": {}}
    write_sealed_json(files.summary, summary)
    return files.root, photos
