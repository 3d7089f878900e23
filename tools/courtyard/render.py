"""Render the bundled courtyard: 12 day and 4 night views with exact cameras, depth and surface points.

Run with a Python that has Blender's module (`pip install bpy numpy pillow`, Python 3.11):

    python tools/courtyard/render.py --out src/coam/samples/courtyard

Writes images/*.jpg, depth/*.png (uint16 millimetres along the optical axis, 0: nothing within reach) and
the COLMAP text model cameras.txt, images.txt, points3D.txt. Depth comes from one ray through each pixel
centre, not from the renderer's jittered samples, so it is exact. `--scale 0.3 --views day_01` gives a quick
look. Views that are already there are kept, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script: its package is not installed

import bpy
import numpy as np
from mathutils import Matrix
from PIL import Image

from courtyard.ground_truth import surfaces, true_depth, write_model
from courtyard.lighting import light, sky, switch
from courtyard.scene import build
from courtyard.views import FOCAL, HEIGHT, WIDTH, View, walk

DEPTH_VIEWS = ("day_04", "day_06", "day_09", "night_02")


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
