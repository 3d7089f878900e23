"""The pictures of docs/stylization.md, made from the bundled courtyard.

    python tools/make_stylization_figures.py [--out docs/figures] [--weights FILE] [--device auto]

stylize_day_to_night.jpg, stylize_night_to_day.jpg: VIEW, STYLE, sampled image, confidence, result.
stylize_strength.jpg: one VIEW at strength 0, 1/3, 2/3 and 1. stylize_styles.jpg: one VIEW in several styles.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from coam import samples
from coam.stylization import Stylizer, load_stylizer
from coam.stylization.apply import blend
from coam.stylization.panel import draw_panel, draw_row

QUALITY = 88


def day_and_night(stylizer: Stylizer, out: Path) -> None:
    """Both directions, the five pictures in a row."""
    yard = samples.courtyard()
    for name, view, style in (
        ("stylize_day_to_night", "day_04", "night_02"),
        ("stylize_night_to_day", "night_03", "day_08"),
    ):
        result = stylizer.stylize(yard.image(view), yard.image(style))
        draw_panel(result, height=260).save(out / f"{name}.jpg", quality=QUALITY)


def strengths(stylizer: Stylizer, out: Path) -> None:
    """One VIEW from itself to the full style."""
    yard = samples.courtyard()
    result = stylizer.stylize(yard.image("day_09"), yard.image("night_03"))
    row = {
        f"strength {share}": blend(result.view, result.picture, value)
        for share, value in (("0", 0.0), ("1/3", 1 / 3), ("2/3", 2 / 3), ("1", 1.0))
    }
    draw_row(row, height=260).save(out / "stylize_strength.jpg", quality=QUALITY)


def styles(stylizer: Stylizer, out: Path) -> None:
    """One VIEW in the style of a photo and of its grey, warm and pale copies: what STYLE has, no more."""
    yard = samples.courtyard()
    with Image.open(yard.image("day_06")) as opened:
        style = np.asarray(opened.convert("RGB")).astype(np.float32) / 255
    light = style @ np.array([0.299, 0.587, 0.114], np.float32)
    looks = {
        "VIEW": None,
        "STYLE as it is": style,
        "STYLE in grey": np.repeat(light[..., None], 3, axis=2),
        "STYLE at sunset": np.clip(style**1.3 * [1.15, 0.75, 0.5], 0, 1),
        "STYLE in fog": style * 0.35 + 0.6,
    }
    view = yard.image("day_07")
    row = {}
    for name, look in looks.items():
        if look is None:
            with Image.open(view) as opened:
                row[name] = np.asarray(opened.convert("RGB"))
        else:
            row[name] = stylizer.stylize(view, np.rint(look * 255).astype(np.uint8)).picture
    draw_row(row, height=260).save(out / "stylize_styles.jpg", quality=QUALITY)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "figures")
    parser.add_argument("--weights", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    stylizer = load_stylizer(options.weights, device=options.device)
    for make in (day_and_night, strengths, styles):
        make(stylizer, options.out)


if __name__ == "__main__":
    main()
