"""Meshes for the rendered courtyard: boxes, turned bodies, pierced walls, leaves. Metres, z up."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import bpy
from mathutils import Euler, Matrix, Vector

Point = tuple[float, float, float]
Hole = tuple[float, float, float, float]  # left, right, bottom, top on a wall


def place(
    x: float, y: float, z: float = 0.0, turn: float = 0.0, tilt: tuple[float, float] = (0, 0)
) -> Matrix:
    """A pose: turned about z by `turn` degrees and tilted about x and y by `tilt` degrees, then moved."""
    angles = (math.radians(tilt[0]), math.radians(tilt[1]), math.radians(turn))
    return Matrix.Translation((x, y, z)) @ Euler(angles).to_matrix().to_4x4()


def mesh(
    points: Sequence[Any],
    faces: Sequence[Sequence[int]],
    material: bpy.types.Material,
    at: Matrix | None = None,
    smooth: bool = False,
    uv: Sequence[Sequence[tuple[float, float]]] | None = None,
) -> bpy.types.Object:
    """An object in the scene; `uv` lists one coordinate per corner of each face."""
    data = bpy.data.meshes.new("mesh")
    data.from_pydata([tuple(p) for p in points], [], [tuple(f) for f in faces])
    if uv is not None:
        layer = data.uv_layers.new(name="uv")
        layer.data.foreach_set("uv", [c for face in uv for corner in face for c in corner])
    data.polygons.foreach_set("use_smooth", [smooth] * len(data.polygons))
    data.materials.append(material)
    data.update()
    thing = bpy.data.objects.new("object", data)
    thing.matrix_world = at or Matrix()
    bpy.context.scene.collection.objects.link(thing)
    return thing


def box(size: Point, material: bpy.types.Material, at: Matrix, bevel: float = 0.0) -> bpy.types.Object:
    """A box centred in x and y, standing on z = 0 of `at`."""
    x, y, z = size[0] / 2, size[1] / 2, size[2]
    points = [(sx * x, sy * y, h) for h in (0, z) for sx, sy in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    faces = [(3, 2, 1, 0), (4, 5, 6, 7), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7)]
    thing = mesh(points, faces, material, at)
    if bevel:
        modifier = thing.modifiers.new("bevel", "BEVEL")
        modifier.width, modifier.segments = bevel, 2
    return thing


def sheet(
    width: float,
    height: float,
    material: bpy.types.Material,
    at: Matrix,
    wave: float = 0.0,
    columns: int = 24,
) -> bpy.types.Object:
    """An upright cloth or board in the x-z plane, facing -y, hanging down from z = 0 by `height`."""
    points, faces, uv = [], [], []
    rows = 8 if wave else 1
    columns = columns if wave else 1
    for r in range(rows + 1):
        for c in range(columns + 1):
            u, v = c / columns, r / rows
            sway = wave * v * (math.sin(u * 11) + 0.5 * math.sin(u * 23 + 3 * v))
            points.append(((u - 0.5) * width, sway, -v * height))
    for r in range(rows):
        for c in range(columns):
            a = r * (columns + 1) + c
            faces.append((a + columns + 1, a + columns + 2, a + 1, a))
            left, right, top, low = c / columns, (c + 1) / columns, 1 - r / rows, 1 - (r + 1) / rows
            uv.append([(left, low), (right, low), (right, top), (left, top)])
    return mesh(points, faces, material, at, bool(wave), uv)


def turned(
    profile: Sequence[tuple[float, float]],
    material: bpy.types.Material,
    at: Matrix,
    segments: int = 32,
    smooth: bool = True,
    radius: Callable[[float, float], float] | None = None,
) -> bpy.types.Object:
    """A body of revolution from (radius, height) pairs; `radius(angle, height)` scales it for folds."""
    points, faces = [], []
    for r, z in profile:
        for k in range(segments):
            angle = 2 * math.pi * k / segments
            scaled = r * (radius(angle, z) if radius else 1.0)
            points.append((scaled * math.cos(angle), scaled * math.sin(angle), z))
    for i in range(len(profile) - 1):
        for k in range(segments):
            a, b = i * segments + k, i * segments + (k + 1) % segments
            faces.append((a, b, b + segments, a + segments))
    faces.append(tuple(range(segments))[::-1])
    faces.append(tuple(range((len(profile) - 1) * segments, len(profile) * segments)))
    thing = mesh(points, faces, material, at, smooth)
    if smooth:
        thing.data.set_sharp_from_angle(angle=math.radians(40))
    return thing


def rod(
    start: Point,
    end: Point,
    thickness: float,
    material: bpy.types.Material,
    at: Matrix | None = None,
    end_thickness: float | None = None,
) -> bpy.types.Object:
    """A round bar between two points."""
    a, b = Vector(start), Vector(end)
    turn = (b - a).to_track_quat("Z", "Y").to_matrix().to_4x4()
    pose = (at or Matrix()) @ Matrix.Translation(a) @ turn
    last = thickness if end_thickness is None else end_thickness
    return turned([(thickness, 0), (last, (b - a).length)], material, pose, 10)


def pierced_wall(
    width: float,
    height: float,
    holes: Iterable[Hole],
    material: bpy.types.Material,
    at: Matrix,
    depth: float = 0.25,
) -> bpy.types.Object:
    """A wall in the x-z plane facing -y, from (0, 0) to (width, height), with openings `depth` deep."""
    holes = list(holes)
    xs = sorted({0.0, width, *(h[0] for h in holes), *(h[1] for h in holes)})
    zs = sorted({0.0, height, *(h[2] for h in holes), *(h[3] for h in holes)})
    points: list[Point] = []
    faces: list[tuple[int, ...]] = []

    def quad(*corners: Point) -> None:
        faces.append(tuple(range(len(points), len(points) + 4)))
        points.extend(corners)

    for x0, x1 in itertools.pairwise(xs):
        for z0, z1 in itertools.pairwise(zs):
            x, z = (x0 + x1) / 2, (z0 + z1) / 2
            if not any(a < x < b and c < z < d for a, b, c, d in holes):
                quad((x0, 0, z0), (x1, 0, z0), (x1, 0, z1), (x0, 0, z1))
    for a, b, c, d in holes:
        quad((a, 0, c), (a, depth, c), (a, depth, d), (a, 0, d))
        quad((b, depth, c), (b, 0, c), (b, 0, d), (b, depth, d))
        quad((a, 0, d), (a, depth, d), (b, depth, d), (b, 0, d))
        quad((a, depth, c), (a, 0, c), (b, 0, c), (b, depth, c))
    quad((0, 0, height), (width, 0, height), (width, depth * 2, height), (0, depth * 2, height))
    return mesh(points, faces, material, at)


def leaf_cloud(
    spots: Iterable[tuple[Vector, Vector]], size: float, material: bpy.types.Material, rng: random.Random
) -> bpy.types.Object:
    """Small folded leaves at (position, facing) pairs, as one mesh."""
    points: list[Any] = []
    faces: list[tuple[int, ...]] = []
    for position, facing in spots:
        jitter = Vector((rng.gauss(0, 0.5), rng.gauss(0, 0.5), rng.gauss(0, 0.5)))
        turn = (facing + jitter).to_track_quat("Z", "Y") @ Euler((0, 0, rng.uniform(0, 6.3))).to_quaternion()
        s = size * rng.uniform(0.6, 1.3)
        outline = [
            (0, -1, 0),
            (0.55, -0.25, 0.25),
            (0.3, 0.5, 0.15),
            (0, 1.1, 0),
            (-0.3, 0.5, 0.15),
            (-0.55, -0.25, 0.25),
        ]
        first = len(points)
        points += [position + turn @ (Vector(p) * s) for p in outline]
        faces += [(first, first + 1, first + 2, first + 3), (first, first + 3, first + 4, first + 5)]
    return mesh(points, faces, material)


def tiled_roof(
    width: float, length: float, pitch: float, material: bpy.types.Material, at: Matrix, rng: random.Random
) -> bpy.types.Object:
    """A slope of clay tiles rising along +y from the eave at y = 0; `pitch` in degrees."""
    tile, row, per_tile = 0.21, 0.34, 6
    columns, rows = int(width / tile), int(length / row)
    rise, run = math.sin(math.radians(pitch)), math.cos(math.radians(pitch))
    points, faces, uv = [], [], []
    for r in range(rows):
        slip = [rng.gauss(0, 0.012) for _ in range(columns + 1)]
        for end in (0, 1):
            for c in range(columns * per_tile + 1):
                bulge = 0.055 * abs(math.sin(math.pi * c / per_tile))
                along = (r + end * 1.06) * row + slip[c // per_tile]
                lift = bulge + (0.05 if end == 0 else 0.0)
                points.append((c * tile / per_tile, along * run - lift * rise, along * rise + lift * run))
    stride = columns * per_tile + 1
    for strip in range(
        2 * rows - 1
    ):  # the odd ones close the gap up to the next row, or the sky would shine through
        for c in range(columns * per_tile):
            a = strip * stride + c
            faces.append((a, a + 1, a + 1 + stride, a + stride))
            uv.append([((c // per_tile) + 0.5, strip // 2 + 0.5)] * 4)
    return mesh(points, faces, material, at, uv=uv)
