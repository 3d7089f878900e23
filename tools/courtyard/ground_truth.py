"""Depth by ray casting, surface points with their tracks, and the COLMAP text model."""

from __future__ import annotations

from pathlib import Path

import bpy
import numpy as np
from mathutils import Vector
from mathutils.bvhtree import BVHTree
from PIL import Image

from courtyard.views import FOCAL, HEIGHT, WIDTH, View

FAR = 60.0  # metres: rays that go further hit nothing
POINTS = 600  # surface points, about


def surfaces() -> BVHTree:
    """All meshes of the scene, modifiers applied, in world coordinates, as one tree for rays."""
    graph = bpy.context.evaluated_depsgraph_get()
    points: list[np.ndarray] = []
    faces: list[list[int]] = []
    count = 0
    for thing in bpy.context.scene.objects:
        if thing.type != "MESH":
            continue
        data = thing.evaluated_get(graph).data
        local = np.empty(3 * len(data.vertices), dtype=np.float32)
        data.vertices.foreach_get("co", local)
        pose = np.array(thing.matrix_world)
        points.append(local.reshape(-1, 3).astype(np.float64) @ pose[:3, :3].T + pose[:3, 3])
        faces += [[count + i for i in polygon.vertices] for polygon in data.polygons]
        count += len(data.vertices)
    return BVHTree.FromPolygons(np.concatenate(points).tolist(), faces)


def true_depth(view: View, tree: BVHTree) -> np.ndarray:
    """Depth (HEIGHT, WIDTH) in metres along the optical axis at pixel centres; 0 where there is nothing."""
    x, y = np.meshgrid(np.arange(WIDTH) + 0.5 - WIDTH / 2, np.arange(HEIGHT) + 0.5 - HEIGHT / 2)
    rays = np.stack([x / FOCAL, y / FOCAL, np.ones_like(x)], axis=-1).reshape(-1, 3) @ view.rotation()
    lengths = np.linalg.norm(rays, axis=1)
    eye = Vector(view.eye)
    depth = np.zeros(len(rays))
    for i, (ray, length) in enumerate(zip(rays.tolist(), lengths, strict=True)):
        _, _, _, distance = tree.ray_cast(eye, ray, FAR)
        if distance is not None:
            depth[i] = distance / length
    return depth.reshape(HEIGHT, WIDTH)


def project(view: View, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """COLMAP pixels (N, 2) and depth (N,) of world points (N, 3)."""
    local = (points - np.asarray(view.eye)) @ view.rotation().T
    pixels = FOCAL * local[:, :2] / local[:, 2:] + np.array([WIDTH / 2, HEIGHT / 2])
    return pixels, local[:, 2]


def _flat(depth: np.ndarray, relative: float = 0.04) -> np.ndarray:
    """Pixels whose 5x5 neighbourhood holds one surface: no leaves, no edges."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(depth, 2, mode="edge"), (5, 5))
    return (windows.max((-1, -2)) - windows.min((-1, -2)) < relative * depth) & (depth > 0)


def surface_points(
    views: list[View], depths: dict[str, np.ndarray]
) -> tuple[np.ndarray, list[list[tuple[str, float, float]]]]:
    """Surface points (N, 3), and for each the views (name, x, y in COLMAP pixels) that truly see it."""
    rng = np.random.default_rng(5)
    flat = {name: _flat(depth) for name, depth in depths.items()}
    points = []
    for view in views:
        rows, columns = np.nonzero(flat[view.name])
        chosen = rng.choice(len(rows), POINTS // len(views) + 8, replace=False)
        z = depths[view.name][rows[chosen], columns[chosen]]
        rays = np.stack(
            [
                (columns[chosen] + 0.5 - WIDTH / 2) / FOCAL,
                (rows[chosen] + 0.5 - HEIGHT / 2) / FOCAL,
                np.ones(len(z)),
            ],
            1,
        )
        points.append((rays * z[:, None]) @ view.rotation() + np.asarray(view.eye))
    everything = np.concatenate(points)
    tracks: list[list[tuple[str, float, float]]] = [[] for _ in everything]
    for view in views:
        pixels, z = project(view, everything)
        column, row = np.floor(pixels[:, 0]).astype(int), np.floor(pixels[:, 1]).astype(int)
        inside = (z > 0.1) & (column >= 2) & (row >= 2) & (column < WIDTH - 2) & (row < HEIGHT - 2)
        for i in np.nonzero(inside)[0]:
            at = (row[i], column[i])
            if flat[view.name][at] and abs(depths[view.name][at] - z[i]) < 0.01 * z[i]:
                tracks[i].append((view.name, *pixels[i].tolist()))
    kept = [i for i, track in enumerate(tracks) if len(track) >= 3]
    return everything[kept], [tracks[i] for i in kept]


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """(w, x, y, z), w >= 0: the eigenvector of Bar-Itzhack's symmetric matrix, exact in float64."""
    (a, b, c), (d, e, f), (g, h, i) = rotation
    k = np.array(
        [
            [a + e + i, h - f, c - g, d - b],
            [0, a - e - i, b + d, c + g],
            [0, 0, e - a - i, f + h],
            [0, 0, 0, i - a - e],
        ]
    )
    q = np.linalg.eigh(k, UPLO="U")[1][:, -1]
    return q if q[0] >= 0 else -q


def write_model(out: Path, views: list[View], depths: dict[str, np.ndarray]) -> None:
    """The COLMAP text model."""
    points, tracks = surface_points(views, depths)
    rows: dict[str, list[tuple[float, float, int]]] = {v.name: [] for v in views}
    colors = {v.name: np.asarray(Image.open(out / "images" / f"{v.name}.jpg")) for v in views}
    ids = {v.name: i + 1 for i, v in enumerate(views)}
    lines = ["# POINT3D_ID X Y Z R G B ERROR TRACK[] as (IMAGE_ID, POINT2D_IDX)"]
    for i, (point, track) in enumerate(zip(points, tracks, strict=True)):
        ends = []
        for name, x, y in track:
            ends.append(f"{ids[name]} {len(rows[name])}")
            rows[name].append((x, y, i + 1))
        name, x, y = track[0]
        red, green, blue = colors[name][int(y), int(x)]
        lines.append(
            f"{i + 1} {point[0]:.5f} {point[1]:.5f} {point[2]:.5f} {red} {green} {blue} 0 " + " ".join(ends)
        )
    (out / "points3D.txt").write_text("\n".join(lines) + "\n")
    (out / "cameras.txt").write_text(
        "# CAMERA_ID MODEL WIDTH HEIGHT PARAMS[]\n"
        f"1 PINHOLE {WIDTH} {HEIGHT} {FOCAL} {FOCAL} {WIDTH / 2} {HEIGHT / 2}\n"
    )
    lines = ["# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME", "# POINTS2D[] as (X, Y, POINT3D_ID)"]
    for view in views:
        rotation = view.rotation()
        q, t = quaternion(rotation), -rotation @ np.asarray(view.eye)
        numbers = " ".join(f"{v:.12g}" for v in (*q, *t))
        lines.append(f"{ids[view.name]} {numbers} 1 {view.name}.jpg")
        lines.append(" ".join(f"{x:.2f} {y:.2f} {p}" for x, y, p in rows[view.name]))
    (out / "images.txt").write_text("\n".join(lines) + "\n")
