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
from coam.errors import DataError, MissingExtraError
from coam.geometry.coordinates import from_colmap, resize_points

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

    name: str
    jpeg: bytes
    size: tuple[int, int]
    intrinsics: Array  # (4,)
    radial: Array  # (2,)
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
    image_scene: list[int] = []
    pairs: list[tuple[int, int]] = []
    facts: list[tuple[int, float, float]] = []
    first_id = 0
    for index, scene in enumerate(scenes):
        progress(index, len(scenes))
        scene_views, first_id = _read_scene(scene, max_side, max_error, first_id)
        for i, j in combinations(range(len(scene_views)), 2):
            fact = _pair_facts(scene_views[i], scene_views[j], min_shared)
            if fact is not None:
                pairs.append((len(views) + i, len(views) + j))
                facts.append(fact)
        views.extend(scene_views)
        image_scene.extend([index] * len(scene_views))
    progress(len(scenes), len(scenes))
    if not pairs:
        raise DataError(
            f"no two photos share {min_shared} points; give a model with more photos that overlap"
        )
    packed = _assemble(views, image_scene, pairs, facts, [scene.name for scene in scenes])
    packed.save(output)
    return packed


def _assemble(
    views: list[_View],
    image_scene: list[int],
    pairs: list[tuple[int, int]],
    facts: list[tuple[int, float, float]],
    scenes: list[str],
) -> PackedTracks:
    jpeg, jpeg_spans = concatenate_bytes([view.jpeg for view in views])
    counts = [len(view.point_ids) for view in views]
    shared, angle, scale = zip(*facts, strict=True)
    return PackedTracks(
        jpeg=jpeg,
        jpeg_spans=jpeg_spans,
        sizes=np.array([view.size for view in views], dtype=np.int32),
        image_scene=np.array(image_scene, dtype=np.int32),
        intrinsics=np.stack([view.intrinsics for view in views]),
        radial=np.stack([view.radial for view in views]),
        poses=np.stack([view.pose for view in views]),
        observation_offsets=np.cumsum([0, *counts], dtype=np.int64),
        observation_point=np.concatenate([view.point_ids for view in views]).astype(np.int32),
        observation_xy=np.concatenate([view.xy for view in views]).astype(np.float32),
        observation_depth=np.concatenate([view.depth for view in views]).astype(np.float32),
        pairs=np.array(pairs, dtype=np.int32),
        pair_shared=np.array(shared, dtype=np.int32),
        pair_angle=np.array(angle, dtype=np.float32),
        pair_scale=np.array(scale, dtype=np.float32),
        scenes=tuple(scenes),
        names=tuple(view.name for view in views),
    )


def _read_scene(
    scene: TrackScene, max_side: int | None, max_error: float, first_id: int
) -> tuple[list[_View], int]:
    """Views of one model by name, point ids from `first_id` on, and the first id that is free after it."""
    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtraError("pycolmap", "sfm") from error
    if not scene.model.is_dir():
        raise DataError(f"{scene.model} is not a folder; give the folder of a COLMAP model")
    try:
        model = pycolmap.Reconstruction(find_model(scene.model))
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{scene.model} holds no COLMAP model (cameras, images, points3D)") from error
    good = [
        (pid, p) for pid, p in sorted(model.points3D.items(), key=lambda i: i[0]) if not p.error > max_error
    ]
    number = {pid: first_id + k for k, (pid, _) in enumerate(good)}
    world = np.array([point.xyz for _, point in good]).reshape(-1, 3)
    views = []
    for image in sorted(model.images.values(), key=lambda i: i.name):
        if image.has_pose:
            views.append(_read_view(scene, model, image, number, world, first_id, max_side))
    return views, first_id + len(good)


def find_model(folder: Path) -> Path:
    """The folder itself where it is a COLMAP model, or sparse/0 below it, which coam writes."""
    largest = folder / "sparse" / "0"
    is_model = any((folder / f"images{ending}").is_file() for ending in (".bin", ".txt"))
    return largest if not is_model and largest.is_dir() else folder


def _read_view(
    scene: TrackScene, model: Any, image: Any, number: dict[int, int], world: Array, first_id: int,
    max_side: int | None,
) -> _View:  # fmt: skip
    camera = model.cameras[image.camera_id]
    path = scene.photos / image.name
    if not path.is_file():
        raise DataError(f"{path} is missing; give the photo folder that the model was made from")
    jpeg, size = read_photo_as_jpeg(path, max_side)
    scale = (size[0] / camera.width, size[1] / camera.height)
    if abs(scale[0] / scale[1] - 1) > 0.02:
        raise DataError(
            f"{path} does not have the shape of its camera; give the photos the model was made from"
        )
    found: dict[int, Array] = {}
    for point in image.points2D:  # a 3D point can be observed twice in one photo: keep the first
        if point.has_point3D() and point.point3D_id in number:
            found.setdefault(number[point.point3D_id], point.xy)
    ids = np.array(sorted(found), dtype=np.int64)
    xy = np.array([found[i] for i in ids], dtype=np.float64).reshape(-1, 2)
    matrix = camera.calibration_matrix()
    centre = resize_points(from_colmap(matrix[:2, 2]), scale)
    return _View(
        name=f"{scene.name}/{image.name}",
        jpeg=jpeg,
        size=size,
        intrinsics=np.array([matrix[0, 0] * scale[0], matrix[1, 1] * scale[1], centre[0], centre[1]]),
        radial=_radial(camera),
        pose=np.asarray(image.cam_from_world().matrix()),
        point_ids=ids,
        xy=resize_points(from_colmap(xy), scale),
        world=world[ids - first_id],
    )


def _radial(camera: Any) -> Array:
    """k1, k2 where COLMAP's model has nothing but them; other distortion is not described (nan)."""
    name, params = camera.model.name, camera.params
    if name in ("SIMPLE_PINHOLE", "PINHOLE"):
        return np.zeros(2)
    if name == "SIMPLE_RADIAL":
        return np.array([params[3], 0.0])
    if name == "RADIAL":
        return np.array([params[3], params[4]])
    return np.full(2, np.nan)


def _pair_facts(view0: _View, view1: _View, min_shared: int) -> tuple[int, float, float] | None:
    """Shared points, median triangulation angle in degrees, relative scale; None below `min_shared`."""
    shared, index0, index1 = np.intersect1d(
        view0.point_ids, view1.point_ids, assume_unique=True, return_indices=True
    )
    if len(shared) < min_shared:
        return None
    ray0, ray1 = (view.world[index0 if view is view0 else index1] - view.centre for view in (view0, view1))
    cosine = (ray0 * ray1).sum(1) / (np.linalg.norm(ray0, axis=1) * np.linalg.norm(ray1, axis=1))
    angle = float(np.degrees(np.median(np.arccos(np.clip(cosine, -1, 1)))))
    larger = (view1.intrinsics[0] / view1.depth[index1]) / (view0.intrinsics[0] / view0.depth[index0])
    return len(shared), angle, float(np.median(larger))
