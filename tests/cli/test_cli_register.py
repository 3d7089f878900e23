"""`coam register`: what it writes and prints, and its exit codes: 0, 1 refused, 2 a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from coam.images import load_image
from coam.samples import motorcycle
from support.known_registration import seen_through

MATRIX = np.array([[1.0, -0.04, 6.0], [0.04, 1.0, -3.0], [0, 0, 1]])
FAST = ("--resolution", "320", "--device", "cpu")


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, Path]:
    photo = cv2.resize(load_image(motorcycle().left).rgb, (320, 240), interpolation=cv2.INTER_AREA)
    moved = seen_through(photo, MATRIX, (320, 240))
    paths = tmp_path / "moving.png", tmp_path / "fixed.png"
    Image.fromarray(photo).save(paths[0])
    Image.fromarray(np.rint(255 * (moved / 255) ** 1.6).astype(np.uint8)).save(paths[1])
    return paths


def test_an_image_is_laid_onto_another(run, images: tuple[Path, Path], tmp_path: Path) -> None:
    outputs = [tmp_path / "out" / name for name in ("a.png", "a.json", "a.html", "a.checker.png")]
    wanted = [word for path in outputs for word in ("-o", str(path))]
    result = run("register", *map(str, images), *wanted, "--model", "similarity", "--json", *FAST)
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["kind"] == "similarity"
    assert np.array(summary["matrix"]) == pytest.approx(MATRIX, abs=0.5)
    assert np.array(summary["matrix"])[:2, :2] == pytest.approx(MATRIX[:2, :2], abs=0.004)
    assert summary["refusal"] == ""
    assert 0 < summary["uncertainty"] < 0.5  # pixels: matches are nearly everywhere
    assert all(path.is_file() for path in outputs)
    drawn, fixed = load_image(outputs[0]).rgb, load_image(images[1]).rgb
    assert drawn.shape == fixed.shape


def test_what_does_not_fit_is_refused_and_nothing_written(
    run, images: tuple[Path, Path], tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (240, 320, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    out = tmp_path / "a.png"
    result = run("register", str(images[0]), str(tmp_path / "noise.png"), "-o", str(out), *FAST)
    assert result.exit_code == 1
    assert result.stderr.startswith("refused: ")
    assert not out.exists()


def test_limits_decide(run, images: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    command = ("register", *map(str, images), "-o", str(out), "--max-error", "0.001", *FAST)
    result = run(*command)
    assert result.exit_code == 1
    assert "left-out" in result.stderr
    assert not out.exists()
    forced = run(*command, "--force")
    assert forced.exit_code == 1
    assert out.is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "rigid"), "choose one of auto"),
        (("--bands", "0"), "give one band or three"),
        (("--bands", "9"), "has 3 band"),
        (("--interpolation", "best"), "choose one of nearest"),
        (("-o", "a.bmp2"), "cannot write the ending"),
        (("--middle",), "for a folder"),
    ],
)
def test_mistakes_are_one_line(run, images: tuple[Path, Path], words: tuple[str, ...], said: str) -> None:
    result = run("register", *map(str, images), *words, *FAST)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_one_image_alone_is_a_mistake(run, images: tuple[Path, Path], tmp_path: Path) -> None:
    assert "two images" in run("register", str(images[0])).stderr
    assert "no such file" in run("register", str(images[0]), str(tmp_path / "none.png")).stderr
    assert "--output FOLDER" in run("register", str(tmp_path)).stderr


def test_a_folder_is_laid_onto_its_first(run, images: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    folder.mkdir()
    for name, path in zip(("a.png", "b.png"), images[::-1], strict=True):
        path.rename(folder / name)
    result = run("register", str(folder), "-o", str(tmp_path / "out"), "--json", *FAST)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert [line["kept"] for line in report["images"]] == [True, True]
    shapes = {load_image(tmp_path / "out" / name).rgb.shape for name in ("a.png", "b.png")}
    assert len(shapes) == 1
    assert (220, 290) < shapes.pop()[:2] < (240, 320)


def test_a_tiff_that_nothing_can_write_is_refused_before_the_work(
    run, images: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coam.registration import outputs, pair

    monkeypatch.setattr(outputs, "find_spec", lambda name: None)
    monkeypatch.setattr(pair, "find_registration", lambda *_: pytest.fail("the work was done"))
    result = run("register", *map(str, images), "-o", str(tmp_path / "a.tif"), *FAST)
    assert result.exit_code == 2
    assert "tifffile is not installed; install it with: pip install" in result.stderr
    assert not (tmp_path / "a.tif").exists()
