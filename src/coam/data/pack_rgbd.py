"""A folder of RGB-D frames into one packed file (see `coam.data.packed`).

The folder holds NAME.color.jpg, NAME.depth.png (16 bit, 0 or 65535 where there is no depth), NAME.pose.txt (4
x 4, world-from-camera) and one intrinsics.txt (3 x 3). Many sensors have two cameras: where the folder also
holds color_intrinsics.txt (3 x 3) and color_from_depth.txt (4 x 4), intrinsics.txt and the poses are those of
the depth camera, and depth is registered to the colour camera while packing.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coam.data.depth import DEFAULT_DEPTH, DepthViews, probe_grid
from coam.data.packed import PackedRgbd, PackedTracks, concatenate_bytes, read_photo_as_jpeg
from coam.errors import DataError
from coam.geometry.depth import back_project, intrinsics_matrix, relative_pose, sample_depth
from coam.images.limits import opened_picture

Array = npt.NDArray[Any]
_PROBE_STEP = 16


@dataclass(frozen=True)
class _Frame:
    """One frame with depth seen from the colour camera."""

    name: str
    jpeg: bytes
    size: tuple[int, int]
    depth: npt.NDArray[np.float32]  # (H, W) metres
    intrinsics: Array  # (4,)
    pose: Array  # (3, 4) camera-from-world


def pack_rgbd(
    folder: str | Path,
    output: str | Path,
    scene: str = "",
    tracks: PackedTracks | None = None,
    min_shared: float = 0.1,
    depth_unit: float = 0.001,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PackedRgbd:
    """Pack the frames of `folder` and the pairs that share `min_shared` of their view into `output`.

    With `tracks` (a COLMAP model of the colour photos, packed) its cameras and poses take the place of those
    in the folder; its scale is found from the depth. Frames that the model does not hold are left out.
    """
    folder = Path(folder)
    frames = _read_frames(folder, depth_unit, progress)
    if tracks is not None:
        frames = _take_poses(frames, tracks)
    overlaps = _overlaps(frames, min_shared)
    if len(overlaps["pairs"]) == 0:
        raise DataError(
            f"no two frames of {folder} see {min_shared:.0%} in common; check poses and depth unit"
        )
    jpeg, jpeg_spans = concatenate_bytes([f.jpeg for f in frames])
    depth, depth_spans = concatenate_bytes([_depth_png(f.depth, depth_unit) for f in frames])
    packed = PackedRgbd(
        jpeg=jpeg,
        jpeg_spans=jpeg_spans,
        depth_png=depth,
        depth_spans=depth_spans,
        depth_unit=np.array([depth_unit]),
        sizes=np.array([f.size for f in frames], dtype=np.int32),
        image_scene=np.zeros(len(frames), dtype=np.int32),
        intrinsics=np.stack([f.intrinsics for f in frames]),
        poses=np.stack([f.pose for f in frames]),
        **overlaps,
        scenes=(scene or folder.name,),
        names=tuple(f.name for f in frames),
    )
    packed.save(output)
    return packed


def _read_matrix(path: Path, shape: tuple[int, int]) -> Array:
    try:
        matrix = np.loadtxt(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} as {shape[0]} x {shape[1]} numbers") from error
    if matrix.shape != shape or not np.isfinite(matrix).all():
        raise DataError(f"{path} does not hold {shape[0]} x {shape[1]} finite numbers")
    return matrix


def _read_depth(path: Path, unit: float) -> npt.NDArray[np.float32]:
    with opened_picture(path) as image:
        raw = np.asarray(image).astype(np.int64)
    if raw.ndim != 2:
        raise DataError(f"{path} is not a depth map; give a 16-bit grey PNG")
    return np.where((raw > 0) & (raw < 65535), raw * unit, 0.0).astype(np.float32)


def _depth_png(depth: npt.NDArray[np.float32], unit: float) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    steps = np.clip(np.rint(depth / unit), 0, 65534).astype(np.uint16)
    Image.fromarray(steps).save(buffer, "PNG")
    return buffer.getvalue()


def register_depth(
    depth: npt.NDArray[np.float32],
    depth_camera: npt.NDArray[np.float64],
    color_camera: npt.NDArray[np.float64],
    color_from_depth: npt.NDArray[np.float64],
    color_size: tuple[int, int],
) -> npt.NDArray[np.float32]:
    """A depth map (H, W) as the colour camera sees it, in `color_size` = (width, height).

    Cameras are (3, 3), `color_from_depth` (4, 4). Where two depths fall on one pixel the nearer one stays.
    """
    row, column = np.nonzero(depth > 0)
    z = depth[row, column].astype(np.float64)
    rays = np.linalg.inv(depth_camera) @ np.stack([column, row, np.ones(len(row))])
    points = color_from_depth[:3, :3] @ (rays * z) + color_from_depth[:3, 3:]
    ahead = points[2] > 1e-6
    pixels = color_camera @ points[:, ahead]
    x, y = (np.rint(pixels[k] / pixels[2]).astype(np.int64) for k in range(2))
    width, height = color_size
    inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
    registered = np.full(width * height, np.inf)
    np.minimum.at(registered, y[inside] * width + x[inside], points[2, ahead][inside])
    registered[~np.isfinite(registered)] = 0
    return registered.reshape(height, width).astype(np.float32)


def _read_frames(folder: Path, unit: float, progress: Callable[[int, int], None]) -> list[_Frame]:
    photos = sorted(folder.glob("*.color.jpg"))
    if not photos:
        raise DataError(f"{folder} holds no NAME.color.jpg; give a folder of RGB-D frames")
    depth_camera = _read_matrix(folder / "intrinsics.txt", (3, 3))
    two_cameras = (folder / "color_intrinsics.txt").is_file()
    camera = _read_matrix(folder / "color_intrinsics.txt", (3, 3)) if two_cameras else depth_camera
    offset = _read_matrix(folder / "color_from_depth.txt", (4, 4)) if two_cameras else np.eye(4)
    frames = []
    for index, photo in enumerate(photos):
        name = photo.name.removesuffix(".color.jpg")
        jpeg, size = read_photo_as_jpeg(photo, None)
        depth = _read_depth(folder / f"{name}.depth.png", unit)
        if two_cameras:
            depth = register_depth(depth, depth_camera, camera, offset, size)
        elif depth.shape != (size[1], size[0]):
            raise DataError(f"{name}.depth.png and {name}.color.jpg in {folder} differ in size")
        world_from_camera = _read_matrix(folder / f"{name}.pose.txt", (4, 4))
        pose = (offset @ np.linalg.inv(world_from_camera))[:3]
        intrinsics = camera[[0, 1, 0, 1], [0, 1, 2, 2]]
        frames.append(_Frame(name, jpeg, size, depth, intrinsics, pose))
        progress(index + 1, len(photos))
    return frames


def _take_poses(frames: list[_Frame], tracks: PackedTracks) -> list[_Frame]:
    """Frames that `tracks` holds, with its cameras and its poses scaled to the depth."""
    by_name = {Path(name).name.removesuffix(".color.jpg"): k for k, name in enumerate(tracks.names)}
    kept = [f for f in frames if f.name in by_name]
    if len(kept) < 2:
        raise DataError("the tracks hold fewer than 2 of the frames; make them from the same colour photos")
    ratios = []
    for frame in kept:
        _, xy, depth = tracks.observations(by_name[frame.name])
        measured = sample_depth(torch.from_numpy(frame.depth)[None], torch.from_numpy(xy)[None])
        known = measured.known[0].numpy()
        ratios.append(measured.depth[0].numpy()[known] / depth[known])
    scale = float(np.median(np.concatenate(ratios)))
    to_metres = np.array([1.0, 1.0, 1.0, scale])
    places = [by_name[frame.name] for frame in kept]
    return [
        replace(frame, intrinsics=tracks.intrinsics[k], pose=tracks.poses[k] * to_metres)
        for frame, k in zip(kept, places, strict=True)
    ]


def _overlaps(frames: list[_Frame], min_shared: float) -> dict[str, Array]:
    """The pairs of frames that overlap both ways, as the fields of `PackedRgbd` that tell of them."""
    if len({f.depth.shape for f in frames}) > 1:
        raise DataError("the frames differ in size; pack frames of one size per file")
    views = DepthViews(
        torch.from_numpy(np.stack([f.depth for f in frames])),
        intrinsics_matrix(torch.from_numpy(np.stack([f.intrinsics for f in frames]))).float(),
        torch.from_numpy(np.stack([f.pose for f in frames])).float(),
    )
    height, width = views.depth.shape[-2:]
    start = probe_grid(width, height, _PROBE_STEP).expand(len(frames), -1, -1)
    facts: dict[tuple[int, int], tuple[float, float]] = {}
    for i in range(len(frames)):
        own = views[torch.full((len(frames),), i)]
        motion = relative_pose(own.poses, views.poses)
        found = own.project(start, views, motion, DEFAULT_DEPTH)
        known = sample_depth(own.depth, start)
        share = found.valid.sum(1) / known.known.sum(1).clamp(min=1)
        seen = back_project(start, known.depth, own.intrinsics)
        # The other camera's centre in this camera's coordinates: rays from both to every common point.
        centre = -(motion[:, :3, :3].transpose(1, 2) @ motion[:, :3, 3:]).squeeze(-1)
        ray = seen - centre.unsqueeze(1)
        cosine = torch.nn.functional.cosine_similarity(seen, ray, dim=-1).clamp(-1, 1)
        for j in range(len(frames)):
            if j != i and share[j] >= min_shared:
                mask = found.valid[j]
                angle = float(torch.rad2deg(cosine[j][mask].arccos().median()))
                facts[i, j] = (float(share[j]), angle)
    kept = [(*pair, *fact) for pair, fact in facts.items() if pair[0] < pair[1] and pair[::-1] in facts]
    table = np.array(kept, dtype=np.float64).reshape(-1, 4)
    shared, angle = table[:, 2:].T.astype(np.float32)
    return {"pairs": table[:, :2].astype(np.int32), "pair_shared": shared, "pair_angle": angle}
