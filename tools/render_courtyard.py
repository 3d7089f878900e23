"""Render the bundled courtyard: 12 day and 4 night views with exact cameras, depth and surface points.

Run with a Python that has Blender's module (`pip install bpy numpy pillow`, Python 3.11):

    python tools/render_courtyard.py --out src/coam/samples/courtyard

Writes images/*.jpg, depth/*.png (uint16 millimetres along the optical axis, 0: nothing within reach) and
the COLMAP text model cameras.txt, images.txt, points3D.txt. Depth comes from one ray through each pixel
centre, not from the renderer's jittered samples, so it is exact. `--scale 0.3 --views day_01` gives a quick
look. Views that are already there are kept, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bpy
import numpy as np
from courtyard_scene import Courtyard, build
from mathutils import Matrix, Vector
from mathutils.bvhtree import BVHTree
from PIL import Image

WIDTH, HEIGHT, FOCAL = 640, 480, 520.0
DEPTH_VIEWS = ("day_04", "day_06", "day_09", "night_02")
FAR = 60.0  # metres: rays that go further hit nothing
POINTS = 600


@dataclass(frozen=True)
class View:
    """A camera on the arc around the fountain."""

    name: str
    eye: tuple[float, float, float]
    target: tuple[float, float, float]
    night: bool

    def rotation(self) -> np.ndarray:
        """Camera-from-world rotation (3, 3) with COLMAP's axes: x right, y down, z forward."""
        forward = np.subtract(self.target, self.eye)
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, (0, 0, 1.0))
        right /= np.linalg.norm(right)
        return np.stack([right, np.cross(forward, right), forward])


def walk() -> list[View]:
    """Twelve day views over 122 degrees and four night views between; height and aim wander a little."""
    views = []
    angles = [("day", i, -61 + 122 * i / 11) for i in range(12)] + [
        ("night", i, a) for i, a in enumerate((-42, -13, 14, 44))
    ]
    for kind, i, angle in angles:
        wander = np.random.default_rng(100 * (kind == "night") + i).normal(size=6)
        radius = 7.3 + 0.35 * wander[0]
        eye = (
            0.2 + radius * math.sin(math.radians(angle)),
            2.0 - radius * math.cos(math.radians(angle)),
            1.65 + 0.13 * wander[1],
        )
        target = (0.2 + 0.35 * wander[2], 2.2 + 0.3 * wander[3], 1.85 + 0.15 * wander[4])
        views.append(View(f"{kind}_{i + 1:02d}", eye, target, kind == "night"))
    return views


# Light ----------------------------------------------------------------


def light(yard: Courtyard) -> dict[bool, list[bpy.types.Object]]:
    """The sun for the day; lanterns and the moon for the night. Keyed by `night`."""
    sun = bpy.data.lights.new("sun", "SUN")
    sun.energy, sun.angle, sun.color = 4.0, math.radians(1.2), (1.0, 0.90, 0.76)
    moon = bpy.data.lights.new("moon", "SUN")
    moon.energy, moon.angle, moon.color = 0.035, math.radians(2), (0.55, 0.68, 1.0)
    objects: dict[bool, list[bpy.types.Object]] = {False: [], True: []}
    for lamp, night, direction in ((sun, False, (0.50, 0.62, -0.72)), (moon, True, (-0.45, 0.3, -0.8))):
        thing = bpy.data.objects.new(lamp.name, lamp)
        thing.rotation_euler = Vector(direction).to_track_quat("-Z", "Y").to_euler()
        objects[night].append(thing)
    for i, spot in enumerate(yard.lamps):
        if i in (3, 8):
            continue  # every town has some that do not burn
        lamp = bpy.data.lights.new("lantern", "POINT")
        lamp.energy, lamp.shadow_soft_size, lamp.color = 42, 0.13, (1.0, 0.60, 0.27)
        thing = bpy.data.objects.new("lantern", lamp)
        thing.location = spot
        objects[True].append(thing)
    for spot in ((-5.0, -9.0, 4.5), (5.5, -9.0, 4.5)):  # street lamps behind the walker
        lamp = bpy.data.lights.new("street", "POINT")
        lamp.energy, lamp.shadow_soft_size, lamp.color = 170, 0.3, (1.0, 0.74, 0.46)
        thing = bpy.data.objects.new("street", lamp)
        thing.location = spot
        objects[True].append(thing)
    for group in objects.values():
        for thing in group:
            bpy.context.scene.collection.objects.link(thing)
    return objects


def sky(night: bool) -> bpy.types.World:
    """A blue gradient with clouds; deep blue with a glow at the horizon by night."""
    world = bpy.data.worlds.new("night" if night else "day")
    world.use_nodes = True
    tree = world.node_tree
    tree.nodes.clear()
    new, link = tree.nodes.new, tree.links.new
    direction = new("ShaderNodeTexCoord").outputs["Generated"]
    split = new("ShaderNodeSeparateXYZ")
    link(direction, split.inputs[0])
    ramp = new("ShaderNodeValToRGB")
    link(split.outputs[2], ramp.inputs[0])
    low, high = (
        ((0.020, 0.026, 0.055), (0.004, 0.007, 0.022)) if night else ((0.55, 0.68, 0.86), (0.13, 0.30, 0.66))
    )
    ramp.color_ramp.elements[0].color, ramp.color_ramp.elements[1].color = (*low, 1), (*high, 1)
    ramp.color_ramp.elements[1].position = 0.7
    flatten = new("ShaderNodeVectorMath")
    flatten.operation = "MULTIPLY"
    flatten.inputs[1].default_value = (1.0, 1.0, 2.8)
    link(direction, flatten.inputs[0])
    noise = new("ShaderNodeTexNoise")
    for key, value in {"Scale": 2.1, "Detail": 9.0, "Roughness": 0.58, "Distortion": 0.3}.items():
        noise.inputs[key].default_value = value
    link(flatten.outputs[0], noise.inputs["Vector"])
    cover = new("ShaderNodeMapRange")
    cover.inputs[1].default_value, cover.inputs[2].default_value = 0.50, 0.68
    cover.inputs[4].default_value = 0.5 if night else 0.92
    link(noise.outputs[0], cover.inputs[0])
    mix = new("ShaderNodeMixRGB")
    mix.inputs[2].default_value = (0.022, 0.023, 0.032, 1) if night else (1.0, 0.98, 0.95, 1)
    link(cover.outputs[0], mix.inputs[0])
    link(ramp.outputs[0], mix.inputs[1])
    background = new("ShaderNodeBackground")
    background.inputs[1].default_value = 0.9
    link(mix.outputs[0], background.inputs[0])
    link(background.outputs[0], new("ShaderNodeOutputWorld").inputs[0])
    return world


def switch(
    yard: Courtyard,
    lights: dict[bool, list[bpy.types.Object]],
    skies: dict[bool, bpy.types.World],
    night: bool,
) -> None:
    """Day or night."""
    scene = bpy.context.scene
    scene.world = skies[night]
    scene.view_settings.exposure = 2.25 if night else 0.2
    for when, group in lights.items():
        for thing in group:
            thing.hide_render = when != night
    for socket in yard.panes:
        socket.default_value = 0.35 if night else 0.0
    for socket in yard.lamp_glass:
        socket.default_value = 7.0 if night else 0.0


# Pictures ----------------------------------------------------------------


def prepare(samples: int, threads: int, scale: float) -> bpy.types.Object:
    """Renderer settings and the camera."""
    scene = bpy.context.scene
    scene.render.engine = "CYCLES"
    scene.cycles.device = "CPU"
    scene.cycles.samples = samples
    scene.cycles.use_denoising = True
    scene.cycles.denoiser = "OPENIMAGEDENOISE"
    scene.cycles.max_bounces, scene.cycles.transparent_max_bounces = 2, 4
    scene.cycles.sample_clamp_indirect = 4.0
    scene.render.threads_mode, scene.render.threads = "FIXED", threads
    scene.render.use_persistent_data = True
    scene.render.resolution_x, scene.render.resolution_y = WIDTH, HEIGHT
    scene.render.resolution_percentage = round(100 * scale)
    scene.render.image_settings.file_format = "PNG"
    scene.view_settings.view_transform = "AgX"
    scene.view_settings.look = "AgX - Medium High Contrast"
    data = bpy.data.cameras.new("camera")
    data.sensor_fit, data.sensor_width = "HORIZONTAL", 36.0
    data.lens = FOCAL / WIDTH * data.sensor_width
    camera = bpy.data.objects.new("camera", data)
    scene.collection.objects.link(camera)
    scene.camera = camera
    return camera


def aim(camera: bpy.types.Object, view: View) -> None:
    """Blender's camera looks along -z with y up: COLMAP's axes with y and z turned round."""
    world_from_camera = view.rotation().T @ np.diag([1.0, -1.0, -1.0])
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = world_from_camera, view.eye
    camera.matrix_world = Matrix(pose.tolist())
    bpy.context.view_layer.update()


def shoot(view: View, target: Path) -> None:
    """Render the current scene to a JPEG; night pictures get a sensor's noise."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "render.png"
        bpy.context.scene.render.filepath = str(path)
        bpy.ops.render.render(write_still=True)
        pixels = np.asarray(Image.open(path).convert("RGB"), dtype=np.float64)
    noise = np.random.default_rng(sum(map(ord, view.name)))
    shot, read = (0.42, 2.2) if view.night else (0.10, 0.8)
    pixels += noise.normal(size=pixels.shape) * np.sqrt(read**2 + shot**2 * pixels)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8)).save(
        partial, "JPEG", quality=88, optimize=True
    )
    partial.replace(target)


# Truth ----------------------------------------------------------------


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to fill")
    parser.add_argument("--samples", type=int, default=8, help="Cycles samples per pixel")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="below 1: pictures only, for a quick look")
    parser.add_argument("--views", nargs="*", help="only these, pictures only")
    options = parser.parse_args()

    views = walk()
    yard = build()
    camera = prepare(options.samples, options.threads, options.scale)
    lights, skies = light(yard), {False: sky(False), True: sky(True)}
    for view in views:
        target = options.out / "images" / f"{view.name}.jpg"
        if (options.views and view.name not in options.views) or target.exists():
            continue
        started, used = time.perf_counter(), time.process_time()
        switch(yard, lights, skies, view.night)
        aim(camera, view)
        shoot(view, target)
        print(
            f"{view.name}: {time.perf_counter() - started:.0f} s, {time.process_time() - used:.0f} s of CPU",
            flush=True,
        )
    if options.views or options.scale != 1.0:
        return
    tree = surfaces()
    depths = {view.name: true_depth(view, tree) for view in views}
    (options.out / "depth").mkdir(exist_ok=True)
    for name in DEPTH_VIEWS:
        millimetres = np.round(depths[name] * 1000).astype(np.uint16)
        Image.fromarray(millimetres).save(options.out / "depth" / f"{name}.png", optimize=True)
    write_model(options.out, views, depths)


if __name__ == "__main__":
    main()
