"""COLMAP models and their photos into one packed file (see `coam.data.packed`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.data.packed import PackedTracks, concatenate_bytes, read_photo_as_jpeg
from coam.errors import DataError
from coam.geometry.coordinates import from_colmap, resize_points
from coam.sfm.colmap_model import read_model, require_pycolmap

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TrackScene:
    """A COLMAP model (folder with cameras, images, points3D as .bin or .txt) and its photo folder.

    A folder of `coam sfm` or `coam data from-photos` stands for the largest model in it.
    """

    name: str
    model: Path
    photos: Path


@dataclass(frozen=True)
class _View:
    """One registered photo, everything in pixels of the packed JPEG."""

    scene: int
    name: str
    jpeg: bytes
    size: tuple[int, int]
    intrinsics: Array  # (4,)
    pose: Array  # (3, 4)
    point_ids: Array  # (m,) ascending
    xy: Array  # (m, 2)
    world: Array  # (m, 3)

    @property
    def depth(self) -> Array:
        """(m,) depth of the observed points."""
        depth: Array = self.world @ self.pose[2, :3] + self.pose[2, 3]
        return depth

    @property
    def centre(self) -> Array:
        """(3,) camera centre in the world."""
        return -self.pose[:, :3].T @ self.pose[:, 3]


def pack_tracks(
    scenes: Sequence[TrackScene],
    output: str | Path,
    max_side: int | None = None,
    min_shared: int = 15,
    max_error: float = 2.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PackedTracks:
    """Pack registered photos and their tracks into the file `output` and give back what was packed.

    Photos with a longer side than `max_side` are made smaller. Points with a mean reprojection error above
    `max_error` pixels are left out, and so are pairs that share fewer than `min_shared` points.
    """
    views: list[_View] = []
    facts: dict[tuple[int, int], tuple[int, float]] = {}
    points = 0  # of the scenes read so far: ids count through
    for number, scene in enumerate(scenes):
        progress(number, len(scenes))
        first = len(views)
        more, points = _read_scene(scene, number, max_side, max_error, points)
        views += more
        for i, j in combinations(range(first, len(views)), 2):
            fact = _pair_facts(views[i], views[j])
            if fact[0] >= min_shared:
                facts[i, j] = fact
    progress(len(scenes), len(scenes))
    if not facts:
        raise DataError(
            f"no two photos share {min_shared} points; give a model with more photos that overlap"
        )
    jpeg, jpeg_spans = concatenate_bytes([view.jpeg for view in views])
    shared, angle = zip(*facts.values(), strict=True)
    packed = PackedTracks(
        jpeg=jpeg,
        jpeg_spans=jpeg_spans,
        sizes=np.array([view.size for view in views], dtype=np.int32),
        image_scene=np.array([view.scene for view in views], dtype=np.int32),
        intrinsics=np.stack([view.intrinsics for view in views]),
        poses=np.stack([view.pose for view in views]),
        observation_offsets=np.cumsum([0, *(len(view.point_ids) for view in views)], dtype=np.int64),
        observation_point=np.concatenate([view.point_ids for view in views]).astype(np.int32),
        observation_xy=np.concatenate([view.xy for view in views]).astype(np.float32),
        observation_depth=np.concatenate([view.depth for view in views]).astype(np.float32),
        pairs=np.array(list(facts), dtype=np.int32),
        pair_shared=np.array(shared, dtype=np.int32),
        pair_angle=np.array(angle, dtype=np.float32),
        scenes=tuple(scene.name for scene in scenes),
        names=tuple(view.name for view in views),
    )
    packed.save(output)
    return packed


def _read_scene(
    scene: TrackScene, number: int, max_side: int | None, max_error: float, first_id: int
) -> tuple[list[_View], int]:
    """Views of one model by name, point ids from `first_id` on, and the first id that is free after it."""
    require_pycolmap()
    if not scene.model.is_dir():
        raise DataError(f"{scene.model} is not a folder; give the folder of a COLMAP model")
    model = read_model(find_model(scene.model))
    good = sorted(pid for pid, point in model.points3D.items() if not point.error > max_error)
    ids = {pid: first_id + k for k, pid in enumerate(good)}
    world = np.array([model.points3D[pid].xyz for pid in good]).reshape(-1, 3)
    views = []
    for image in sorted(model.images.values(), key=lambda i: i.name):
        if image.has_pose:
            camera = model.cameras[image.camera_id]
            jpeg, size = _read_photo(scene.photos / image.name, camera, max_side)
            scale = (size[0] / camera.width, size[1] / camera.height)
            seen: dict[int, Array] = {}
            for point in image.points2D:  # a 3D point can be observed twice in one photo: keep the first
                if point.has_point3D() and point.point3D_id in ids:
                    seen.setdefault(ids[point.point3D_id], point.xy)
            point_ids = np.array(sorted(seen), dtype=np.int64)
            xy = np.array([seen[i] for i in point_ids], dtype=np.float64).reshape(-1, 2)
            matrix = camera.calibration_matrix()
            centre = resize_points(from_colmap(matrix[:2, 2]), scale)
            view = _View(
                scene=number,
                name=f"{scene.name}/{image.name}",
                jpeg=jpeg,
                size=size,
                intrinsics=np.array([matrix[0, 0] * scale[0], matrix[1, 1] * scale[1], *centre]),
                pose=np.asarray(image.cam_from_world().matrix()),
                point_ids=point_ids,
                xy=resize_points(from_colmap(xy), scale),
                world=world[point_ids - first_id],
            )
            views.append(view)
    return views, first_id + len(good)


def find_model(folder: Path) -> Path:
    """The folder itself where it is a COLMAP model, or sparse/0 below it, which coam writes."""
    largest = folder / "sparse" / "0"
    is_model = any((folder / f"images{ending}").is_file() for ending in (".bin", ".txt"))
    return largest if not is_model and largest.is_dir() else folder


def _read_photo(path: Path, camera: Any, max_side: int | None) -> tuple[bytes, tuple[int, int]]:
    """JPEG bytes and size of a photo that has the shape of its camera."""
    if not path.is_file():
        raise DataError(f"{path} is missing; give the photo folder that the model was made from")
    jpeg, size = read_photo_as_jpeg(path, max_side)
    if abs(size[0] / camera.width / (size[1] / camera.height) - 1) > 0.02:
        raise DataError(
            f"{path} does not have the shape of its camera; give the photos the model was made from"
        )
    return jpeg, size


def _pair_facts(view0: _View, view1: _View) -> tuple[int, float]:
    """Shared points, and their median triangulation angle in degrees."""
    shared, index0, index1 = np.intersect1d(
        view0.point_ids, view1.point_ids, assume_unique=True, return_indices=True
    )
    if len(shared) == 0:
        return 0, np.nan
    ray0, ray1 = view0.world[index0] - view0.centre, view1.world[index1] - view1.centre
    cosine = (ray0 * ray1).sum(1) / (np.linalg.norm(ray0, axis=1) * np.linalg.norm(ray1, axis=1))
    angle = float(np.degrees(np.median(np.arccos(np.clip(cosine, -1, 1)))))
    return len(shared), angle
