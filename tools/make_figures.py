"""Rebuild every figure of README and docs from the bundled samples and the shipped model.

    python tools/make_figures.py                    all of them, into docs/figures
    python tools/make_figures.py matches scene      only these

The pictures of the web app are the screenshots that `make test-browser` has left, where there are some.
The same functions draw the pictures of the command line and of the web app. A figure whose sample is not
bundled is reported, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from coam import samples
from coam.errors import CoamError, DataError
from coam.matcher import Matcher, load_matcher
from coam.types import Matches
from coam.viz import (
    align,
    draw_aligned,
    draw_distinctiveness,
    draw_explanation,
    draw_matches,
    flicker_animation,
)

DAY, NIGHT = "day_04", "night_02"
CORRECT_WITHIN = 3.0  # pixels
RESOLUTION = 640
ROOT = Path(__file__).parents[1]
SCREENSHOTS = ROOT / "out" / "screenshots"


@dataclass
class Maker:
    """Loads the matcher once and writes into one folder."""

    folder: Path
    matcher: Matcher

    def save(self, picture: Image.Image, name: str, quality: int = 88) -> Path:
        path = self.folder / f"{name}.jpg"
        picture.save(path, quality=quality, optimize=True, progressive=True)
        return path

    def match(self, image0: Path, image1: Path) -> Matches:
        return self.matcher.match(image0, image1)


def correct_and_known(matches: Matches, truth: tuple[Any, Any]) -> tuple[Matches, Any]:
    """The matches whose truth (points (N, 2), known (N,)) is known, and which of them are correct."""
    points1, known = truth
    chosen = matches.select(np.asarray(known))
    errors = np.linalg.norm(chosen.points1 - np.asarray(points1)[known], axis=1)
    return chosen, errors <= CORRECT_WITHIN


def figure_matches(make: Maker) -> list[Path]:
    """The real pair: lines by score, and by truth where it is known."""
    pair = samples.motorcycle()
    matches = make.match(pair.left, pair.right)
    known, correct = correct_and_known(matches, pair.true_points1(matches.points0))
    return [
        make.save(draw_matches(matches), "matches"),
        make.save(draw_matches(matches, style="flow"), "matches_flow"),
        make.save(draw_matches(known, correct=correct), "matches_correct"),
    ]


def figure_photos(make: Maker) -> list[Path]:
    """The real pairs without truth: a town from a plane, a box in a heap; lines by score."""
    pairs = {"town": samples.town(), "box": samples.box()}
    return [make.save(draw_matches(make.match(*pair)), name, 82) for name, pair in pairs.items()]


def figure_day_night(make: Maker) -> list[Path]:
    """The same place by day and by night: lines by truth."""
    yard = samples.courtyard()
    matches = make.match(yard.image(DAY), yard.image(NIGHT))
    if DAY not in yard.depth_names:
        return [make.save(draw_matches(matches), "day_night")]
    known, correct = correct_and_known(matches, yard.true_points1(DAY, NIGHT, matches.points0))
    return [make.save(draw_matches(known, correct=correct), "day_night")]


def figure_attention(make: Maker) -> list[Path]:
    """What the network looks at for one point, day against night."""
    yard = samples.courtyard()
    day, night = yard.image(DAY), yard.image(NIGHT)
    point = clear_point(make.match(day, night))
    explanation = make.matcher.explain(day, night, point)
    return [make.save(draw_explanation(explanation), "attention")]


def clear_point(matches: Matches) -> tuple[float, float]:
    """Of the best matches the one nearest to the middle of photo 0; its middle when there is none."""
    middle = (np.asarray(matches.size0) - 1) / 2
    best = matches.top(100)
    if len(best) == 0:
        return float(middle[0]), float(middle[1])
    nearest = np.linalg.norm(best.points0 - middle, axis=1).argmin()
    x, y = best.points0[nearest]
    return float(x), float(y)


def figure_distinctiveness(make: Maker) -> list[Path]:
    """Where matches are trusted, day against night: not in the sky, not where only one picture looks."""
    yard = samples.courtyard()
    one = make.matcher.explain(yard.image(DAY), yard.image(NIGHT), (0.0, 0.0))
    picture = draw_distinctiveness((one.image0, one.image1), (one.distinctiveness0, one.distinctiveness1))
    return [make.save(picture, "distinctiveness")]


def figure_alignment(make: Maker) -> list[Path]:
    """Two photos of the courtyard in one frame: checkerboard, and flicker."""
    yard = samples.courtyard()
    aligned = align(make.match(yard.image(DAY), yard.image(NIGHT)), longest=640)
    flicker = make.folder / "flicker.webp"
    flicker.write_bytes(flicker_animation(aligned, "WEBP"))
    return [make.save(draw_aligned(aligned), "checkerboard"), flicker]


def figure_registration(make: Maker) -> list[Path]:
    """A made band of another sensor on a photo of the courtyard: before and after, and residuals."""
    import cv2
    from registration_checks import other_sensor, similarity

    from coam.images import load_image
    from coam.registration import register
    from coam.registration.pictures import draw_before_after, draw_residuals, overlay_of

    fixed = load_image(samples.courtyard().image(DAY)).rgb
    size = (fixed.shape[1], fixed.shape[0])
    turned = cv2.warpPerspective(other_sensor(fixed), similarity(6.0, 1.08, (25.0, -14.0), size), size)
    found = register(turned, fixed, matcher=make.matcher)
    overlay = overlay_of(found, turned, fixed)
    return [
        make.save(draw_before_after(found, overlay, turned), "register_before_after"),
        make.save(draw_residuals(found, overlay), "register_residuals"),
    ]


def figure_scene(make: Maker) -> list[Path]:
    """The courtyard reconstructed from its twelve pictures by day."""
    from scene_picture import draw_scene

    from coam.sfm.mapping.model_files import scene_cameras
    from coam.sfm.pipeline import run_sfm
    from coam.sfm.workspace import load_model

    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        photos.mkdir()
        for path in samples.courtyard().day:
            (photos / path.name).write_bytes(path.read_bytes())
        summary = run_sfm(photos, Path(folder) / "model", make.matcher)
        if summary["registered_images"] < 10:
            raise DataError(f"only {summary['registered_images']} of 12 pictures were registered")
        model, _ = load_model(Path(folder) / "model")
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    colours = np.array([point.color for point in model.points3D.values()]).reshape(-1, 3)
    return [make.save(draw_scene(points, colours, scene_cameras(model)), "scene")]


APP_TABS = ("match", "warp", "geometry", "explain", "compare", "stylize")
APP_PHONE = ("start", "match", "geometry", "warp", "reconstruct")


def figure_app(make: Maker) -> list[Path]:
    """The web app's tabs, as the browser tests saw them: smaller on a wide screen, in a row on a phone."""
    names = {tab: f"{tab}-wide" for tab in APP_TABS}
    names |= {"register": "register-checkerboard-wide", "reconstruct": "reconstruct"}
    made = [make.save(screenshot(file).resize((1000, 1154)), f"app_{tab}", 72) for tab, file in names.items()]
    phones = [screenshot(f"{tab}-phone") for tab in APP_PHONE]
    width, height = phones[0].size
    row = Image.new("RGB", ((width + 16) * len(phones) - 16, height), "white")
    for number, phone in enumerate(phones):
        row.paste(phone, (number * (width + 16), 0))
    return [*made, make.save(row.resize((row.width * 2 // 3, row.height * 2 // 3)), "app_phone", 72)]


def screenshot(name: str) -> Image.Image:
    """What the browser tests kept under that name."""
    path = SCREENSHOTS / f"{name}.png"
    if not path.is_file():
        raise DataError(f"there is no screenshot {name}; run: make test-browser")
    with Image.open(path) as opened:
        return opened.convert("RGB")


FIGURES: dict[str, Callable[[Maker], list[Path]]] = {
    "matches": figure_matches,
    "photos": figure_photos,
    "day_night": figure_day_night,
    "attention": figure_attention,
    "distinctiveness": figure_distinctiveness,
    "alignment": figure_alignment,
    "registration": figure_registration,
    "scene": figure_scene,
    "app": figure_app,
}


def main(arguments: list[str] | None = None) -> int:
    """Make the figures; 1 when one could not be made."""
    parser = argparse.ArgumentParser(description="Rebuild the figures of README and docs.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)}; default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "figures")
    parser.add_argument("--model", default="cdunet-lite1", help="a model's name or a .safetensors file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--resolution", type=int, default=RESOLUTION)
    options = parser.parse_args(arguments)
    unknown = set(options.figures) - set(FIGURES)
    if unknown:
        parser.error(f"there is no figure {', '.join(sorted(unknown))}; choose of {', '.join(FIGURES)}")
    options.output.mkdir(parents=True, exist_ok=True)
    matcher = load_matcher(options.model, device=options.device, resolution=options.resolution)
    if not matcher.file.trained:
        print(f"warning: {matcher.file.name} is untrained, so these figures mean nothing", file=sys.stderr)
    make = Maker(options.output, matcher)
    failed = False
    for name in options.figures or [name for name in FIGURES if name != "app" or SCREENSHOTS.is_dir()]:
        try:
            for path in FIGURES[name](make):
                print(f"{name}: {path.name}, {path.stat().st_size / 1024:.0f} KB")
        except CoamError as error:
            failed = True
            print(f"{name}: not made: {error}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
