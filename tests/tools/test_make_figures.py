"""tools/make_figures.py writes the pictures of README and docs."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

from support import REPOSITORY

SCRIPT = REPOSITORY / "tools" / "make_figures.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_figures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_figures"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make_figures"]


def test_figures_of_the_real_pair_are_written(script, tmp_path, capsys):
    code = script.main(
        ["matches", "distinctiveness", "--output", str(tmp_path), "--resolution", "256", "--device", "cpu"]
    )
    assert code == 0
    names = ["distinctiveness.jpg", "matches.jpg", "matches_correct.jpg", "matches_flow.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        picture = np.asarray(Image.open(tmp_path / name))
        assert picture.shape[1] == 1600
        assert picture.std() > 20
    assert capsys.readouterr().out.count("KB") == 4


def test_an_unknown_figure_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["portrait"])
    assert "there is no figure portrait" in capsys.readouterr().err


def test_the_app_is_shown_as_the_browser_tests_saw_it(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "SCREENSHOTS", tmp_path / "screenshots")
    asked = ["app", "--output", str(tmp_path / "figures"), "--device", "cpu"]
    assert script.main(asked) == 1
    assert "run: make test-browser" in capsys.readouterr().err
    (tmp_path / "screenshots").mkdir()
    wide = ("match", "warp", "geometry", "explain", "compare", "stylize")
    for name in (*(f"{tab}-wide" for tab in (*wide, "register-checkerboard")), "reconstruct"):
        Image.new("RGB", (1200, 1400), (200, 30, 30)).save(tmp_path / "screenshots" / f"{name}.png")
    for name in ("start", "match", "geometry", "warp", "reconstruct"):
        Image.new("RGB", (390, 844), (30, 30, 200)).save(tmp_path / "screenshots" / f"{name}-phone.png")
    assert script.main(asked) == 0
    made = {path.name: Image.open(path).size for path in (tmp_path / "figures").iterdir()}
    tabs = {f"app_{tab}.jpg": (1000, 1154) for tab in (*wide, "register", "reconstruct")}
    row = (5 * 390 + 4 * 16) * 2 // 3, 844 * 2 // 3  # five phones side by side, two thirds of their size
    assert made == tabs | {"app_phone.jpg": row}
