"""The real matcher and the real networks on small copies of the bundled pictures."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import coam.stylization
from coam import samples
from coam.cli import build_app
from coam.cli.stylize import LITTLE_SEEN
from coam.errors import ConfigError
from coam.images import load_image
from coam.stylization import NoOverlapError, Stylized, load_stylizer
from coam.stylization.evaluation import colourfulness, mean_l1, recolour

VIEW, STYLE = "day_04", "night_02"


@cache
def stylizer() -> coam.stylization.Stylizer:
    return load_stylizer(device="cpu", resolution=320)


@cache
def photo(name: str, longest: int = 320) -> np.ndarray:
    with Image.open(samples.courtyard().image(name)) as picture:
        picture.thumbnail((longest, longest))
        return np.asarray(picture)


@cache
def by_night() -> Stylized:
    return stylizer().stylize(photo(VIEW), photo(STYLE))


def change(first: np.ndarray, second: np.ndarray) -> float:
    return mean_l1(first.reshape(-1, 3) / 255, second.reshape(-1, 3) / 255)


def test_day_becomes_night_and_keeps_its_view() -> None:
    result = by_night()
    view, style = photo(VIEW), photo(STYLE)
    assert result.picture.shape == view.shape
    assert result.overlap > 0.9
    assert abs(result.picture.mean() - style.mean()) < 0.25 * abs(view.mean() - style.mean())
    # The edges are where VIEW has them, not where STYLE has them.
    edges = [np.abs(np.diff(p.astype(float).mean(axis=2), axis=1)) for p in (result.picture, view, style)]
    kept = np.corrcoef(edges[0].ravel(), edges[1].ravel())[0, 1]
    assert kept > 0.3
    assert kept > 2 * np.corrcoef(edges[0].ravel(), edges[2].ravel())[0, 1]
    assert result.confidence.min() >= 0
    assert result.confidence.max() <= 1


def test_grey_style_gives_grey() -> None:
    grey = np.repeat(photo(STYLE).mean(axis=2).astype(np.uint8)[..., None], 3, axis=2)
    assert colourfulness(photo(VIEW)) > 0.1
    assert colourfulness(stylizer().stylize(photo(VIEW), grey, force=True).picture) < 0.01


def test_another_style_gives_another_picture_and_a_recoloured_view_does_not() -> None:
    other_style, other_view = recolour(photo(STYLE)), recolour(photo(VIEW))
    swapped = stylizer().stylize(photo(VIEW), other_style, force=True).picture
    assert change(swapped, by_night().picture) > 0.7 * change(other_style, photo(STYLE))
    from_recoloured = stylizer().stylize(other_view, photo(STYLE), force=True).picture
    assert change(from_recoloured, by_night().picture) < 0.2 * change(other_view, photo(VIEW))


def test_strength_goes_from_the_view_to_the_result() -> None:
    assert np.array_equal(stylizer().stylize(photo(VIEW), photo(STYLE), strength=0).picture, photo(VIEW))
    half = stylizer().stylize(photo(VIEW), photo(STYLE), strength=0.5).picture.astype(float)
    between = (photo(VIEW).astype(float) + by_night().picture) / 2
    assert np.abs(half - between).max() <= 0.5
    with pytest.raises(ConfigError, match="between 0 and 1"):
        stylizer().stylize(photo(VIEW), photo(STYLE), strength=1.5)


@pytest.mark.parametrize("size", [(61, 97), (1000, 700)])
def test_any_size_is_kept(size: tuple[int, int]) -> None:
    view = np.asarray(Image.fromarray(photo(VIEW, 640)).resize(size))
    assert stylizer().stylize(view, photo(STYLE), force=True).picture.shape == (size[1], size[0], 3)


def test_photos_of_different_places_are_refused() -> None:
    elsewhere = load_image(samples.motorcycle().left)
    with pytest.raises(NoOverlapError, match="pair score 0"):
        stylizer().stylize(elsewhere, photo(VIEW))
    forced = stylizer().stylize(elsewhere, photo(VIEW), force=True)
    assert forced.overlap < 0.5
    assert forced.picture.shape == elsewhere.rgb.shape


def coam_stylize(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), ["stylize", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command(tmp_path: Path) -> None:
    yard = samples.courtyard()
    out, panel = tmp_path / "out.png", tmp_path / "panel.jpg"
    options = ("--resolution", 320, "--device", "cpu")
    view, style, elsewhere = yard.image(VIEW), yard.image(STYLE), samples.motorcycle().left
    code, stdout, _ = coam_stylize(view, style, "-o", out, "--panel", panel, "--json", *options)
    assert code == 0
    told = json.loads(stdout)
    assert told["overlap"] > 0.9
    assert told["outputs"] == [str(out), str(panel)]
    assert Image.open(out).size == (640, 480)
    assert Image.open(panel).size == (3 * 560 + 2 * 8, 2 * (420 + 28) + 8)  # three above, two below
    assert told["seen"] > 0.6

    nothing = tmp_path / "nothing.png"
    code, _, stderr = coam_stylize(elsewhere, view, "-o", nothing, *options)
    assert code == 2
    assert "pair score" in stderr
    assert not nothing.exists()
    code, _, stderr = coam_stylize(elsewhere, view, "-o", nothing, "--force", *options)
    assert code == 0
    assert "warning: pair score" in stderr
    assert nothing.exists()


def test_how_much_of_the_view_is_seen_is_told(tmp_path: Path) -> None:
    view, part = tmp_path / "view.png", tmp_path / "part.png"
    Image.fromarray(photo(VIEW)).save(view)
    Image.fromarray(photo(VIEW)[:, :80]).save(part)  # a quarter of it
    options = ("-o", tmp_path / "out.png", "--resolution", 320, "--device", "cpu")
    code, stdout, stderr = coam_stylize(view, part, *options)
    assert code == 0
    share = int(re.search(r"(\d+)% of VIEW is seen in STYLE", stdout)[1])
    assert 15 <= share <= 45
    shown = load_stylizer(device="cpu", resolution=320).stylize(view, part).seen  # `share` is rounded
    assert ("warning: STYLE shows only" in stderr) == (shown < LITTLE_SEEN)
    _, stdout, stderr = coam_stylize(view, view, *options)
    assert "100% of VIEW is seen in STYLE" in stdout
    assert stderr == ""
    assert by_night().seen == (by_night().confidence >= 0.4).mean()


def test_mistakes_at_the_command_line(tmp_path: Path) -> None:
    view = samples.courtyard().image(VIEW)
    for arguments, message in (
        ((view, tmp_path / "none.jpg", "-o", tmp_path / "o.png"), "none.jpg"),
        ((view, view, "-o", tmp_path / "o.txt"), "ending"),
        ((view, view, "-o", view), "is an input"),
        ((view, view, "-o", tmp_path / "o.png", "--weights", tmp_path / "w.safetensors"), "no such weights"),
    ):
        code, _, stderr = coam_stylize(*arguments)
        assert code == 2
        assert message in stderr
