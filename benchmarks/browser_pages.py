"""How quickly the interactive pages answer in a headless Chromium: sliders of 2048 matches, a million points.

python -m benchmarks.browser_pages [--moves 40] [--seconds 4] [--json FILE]

A slider's time runs from the moment that its value changes until what it changes is drawn. The time at rest
is that of the full picture, which comes once the slider has not moved for a sixth of a second. For the point
cloud the view is turned a little in every frame. Without a graphics card Chromium draws in software, and the
renderer's name says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.chromium import chromium

SCREENS = {
    "wide": {"viewport": {"width": 1240, "height": 660}},
    "wide and dense": {"viewport": {"width": 1240, "height": 660}, "device_scale_factor": 2},
    "phone": {"viewport": {"width": 366, "height": 658}, "device_scale_factor": 2},
}
MATCHES, POINTS = 2048, 1_000_000
# Until the canvas has drawn it: reading a pixel waits for that.
SLIDER = """([id, values]) => new Promise(done => {
  const slider = element(id), times = [];
  const next = () => {
    if (!values.length) { done(times); return; }
    const began = performance.now();
    slider.value = Number(slider.min) + values.shift() * (Number(slider.max) - Number(slider.min));
    slider.dispatchEvent(new Event("input"));
    requestAnimationFrame(() => {
      context.getImageData(0, 0, 1, 1);
      times.push(performance.now() - began);
      next();
    });
  };
  next(); })"""
AT_REST = """() => { movedAt = -1e9; choose(); const began = performance.now(); paint();
  context.getImageData(0, 0, 1, 1); return performance.now() - began; }"""
TURNING = """seconds => new Promise(done => {
  const frames = [], points = [], began = performance.now();
  const turn = () => {
    const now = performance.now();
    if (now - began > 1000) { frames.push(now); points.push(coamScene.shown()); }   // it finds its pace first
    if (now - began > 1000 * (seconds + 1)) { done([frames, points]); return; }
    orbit(3, 0); moving(); requestAnimationFrame(turn);
  };
  turn(); })"""
# From the last turn until all points are there, and the longest of the frames that bring them.
ALL_POINTS = """() => new Promise(done => {
  const began = performance.now(), times = []; let before = began; moving();
  const look = () => {
    const now = performance.now(); times.push(now - before); before = now;
    if (coamScene.shown() < coamScene.data.count) requestAnimationFrame(look);
    else done([now - began, Math.max(...times)]);
  };
  requestAnimationFrame(look); })"""
RENDERER = """() => { const info = gl.getExtension("WEBGL_debug_renderer_info");
  return info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "unknown"; }"""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a line for each figure, and write them all as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description="How quickly the interactive pages answer.")
    parser.add_argument("--moves", type=int, default=40, help="of each slider")
    parser.add_argument("--seconds", type=float, default=4.0, help="for which the point cloud is turned")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"load average": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as folder, chromium("--enable-unsafe-swiftshader") as browser:
        matches, scene = write_pages(Path(folder))
        for screen, size in SCREENS.items():
            page = browser.new_page(**size)
            page.goto(matches.as_uri())
            page.wait_for_timeout(1000)
            found[f"sliders, {screen}"] = sliders(page, options.moves)
            page.close()
            page = browser.new_page(**size)
            page.goto(scene.as_uri())
            page.wait_for_timeout(3000)
            found[f"point cloud, {screen}"] = point_cloud(page, options.seconds)
            page.close()
    for name, value in found.items():
        print(f"{name}: {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def write_pages(folder: Path) -> tuple[Path, Path]:
    """The page of the bundled pair with random matches, and that of a random cloud."""
    from coam import samples
    from coam.images import load_image
    from coam.types import Matches
    from coam.viz import match_page, scene_page

    rng, pair = np.random.default_rng(0), samples.motorcycle()
    photos = [load_image(path).rgb for path in (pair.left, pair.right)]
    height, width = photos[0].shape[:2]
    points = rng.uniform((0, 0), (width - 1, height - 1), (MATCHES, 2)).astype(np.float32)
    scores, ids, size = np.linspace(1, 0, MATCHES, dtype=np.float32), np.arange(MATCHES), (width, height)
    matches = Matches(points, points, scores, ids, ids, size, size, image0=photos[0], image1=photos[1])
    files = folder / "matches.html", folder / "scene.html"
    files[0].write_text(match_page(matches, models=[matches.homography()]), encoding="utf-8")
    cloud, colours = rng.normal(size=(POINTS, 3)), rng.integers(0, 256, (POINTS, 3))
    camera = ("photo", np.eye(3), np.array([0, 0, 4.0]), 800.0, 640, 480)
    files[1].write_text(scene_page(cloud, colours, [camera]), encoding="utf-8")
    return files


def sliders(page: Any, moves: int) -> dict[str, Any]:
    """Milliseconds from a move until it is drawn, with lines for all matches but where lines are moved."""
    figures: dict[str, Any] = {}
    page.evaluate("setColour('score')")
    page.evaluate("state.lines = count")
    for name in ("score", "threshold", "lines"):
        if name == "threshold":
            page.evaluate("setColour('model0')")
        values = [k / moves for k in range(moves)]
        times = page.evaluate(SLIDER, [name, values if name == "score" else values[::-1]])
        figures[name] = spread_of(times)
        page.evaluate("() => { state.least = lowest; state.lines = count; choose(); }")
    page.evaluate("setColour('score')")
    figures["at rest"] = spread_of([page.evaluate(AT_REST) for _ in range(5)])
    return figures


def point_cloud(page: Any, seconds: float) -> dict[str, Any]:
    """Frames a second while the view turns, points in each, and the time of all points once it rests."""
    frames, points = page.evaluate(TURNING, seconds)
    between = spread_of([float(step) for step in np.diff(frames)])
    whole, longest = page.evaluate(ALL_POINTS)
    rate = (len(frames) - 1) / (frames[-1] - frames[0]) * 1000
    return {
        "frames a second": round(rate, 1),
        "milliseconds a frame": between,
        "points a frame": {"fewest": min(points), "middle": int(statistics.median(points))},
        "milliseconds until all are there": round(whole),
        "longest frame of these": round(longest),
        "renderer": page.evaluate(RENDERER),
    }


def spread_of(times: list[float]) -> dict[str, float]:
    """Middle, nine of ten, and slowest, rounded."""
    ordered = sorted(times)
    nine = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return {
        "middle": round(statistics.median(ordered), 1),
        "nine of ten": round(nine, 1),
        "slowest": round(ordered[-1], 1),
    }


if __name__ == "__main__":
    sys.exit(main())
