"""`coam eval stylization`: rows, baselines and leak checks, with stylizers whose figures are known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coam.evaluation.metrics.tables import summarise
from coam.stylization.evaluation import (
    STYLIZATION,
    colourfulness,
    load_stylization,
    match_histograms,
    recolour,
    score_stylization,
)
from support.toy_pictures import textured

SHIFT = 6  # pixels by which STYLE's camera is moved


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kinds with one sequence each: STYLE is VIEW moved by SHIFT, and darker."""
    folder = tmp_path_factory.mktemp("bench")
    for kind, brightness in (("dusk", 0.5), ("night", 0.2)):
        scene = textured(60, 80 + SHIFT, 4)
        sequence = folder / kind / "v_one"
        sequence.mkdir(parents=True)
        Image.fromarray(scene[:, :-SHIFT]).save(sequence / "1.png")
        Image.fromarray((scene[:, SHIFT:] * brightness).astype(np.uint8)).save(sequence / "2.png")
        np.savetxt(sequence / "H_1_2", [[1, 0, -SHIFT], [0, 1, 0], [0, 0, 1]])
    return folder


class Moved:
    """A matcher that knows the shift."""

    def match(self, view: Any, style: Any, keypoints0: np.ndarray) -> SimpleNamespace:
        return SimpleNamespace(points1=keypoints0 - np.array([SHIFT, 0], np.float32))


class Copies:
    """A stylizer that gives back VIEW: all of VIEW's colour leaks, nothing of STYLE's counts."""

    def stylize(self, view: Any, style: Any, force: bool) -> SimpleNamespace:
        picture = np.asarray(getattr(view, "rgb", view))
        return SimpleNamespace(picture=picture, sampled=picture[::2, ::2], stage1=picture)


class Knows:
    """A stylizer that knows the shift: VIEW's geometry, STYLE's colours."""

    def stylize(self, view: Any, style: Any, force: bool) -> SimpleNamespace:
        rgb = np.asarray(getattr(style, "rgb", style))
        picture = np.concatenate([np.repeat(rgb[:, :1], SHIFT, axis=1), rgb[:, :-SHIFT]], axis=1)
        return SimpleNamespace(picture=picture, sampled=picture, stage1=picture)


def test_rows_of_a_perfect_and_of_a_lazy_stylizer(root: Path) -> None:
    pairs = load_stylization(root)
    assert [pair.subsets for pair in pairs] == [("dusk",), ("night",)]
    perfect = [score_stylization(pair, Moved(), ours=Knows(), with_leaks=True) for pair in pairs]
    for row in perfect:
        assert row["full"] < 1e-3
        assert row["warp_only"] == pytest.approx(0, abs=1e-6)
        assert row["do_nothing"] > 0.2
        assert row["colour_transfer"] < 0.1
        assert row["grey_leak"] == pytest.approx(0, abs=1e-9)
        assert row["view_leak"] == pytest.approx(0, abs=1e-9)
        assert row["swap"] == pytest.approx(1, abs=0.1)
    lazy = [score_stylization(pair, Moved(), ours=Copies(), with_leaks=True) for pair in pairs]
    for row in lazy:
        assert row["full"] == pytest.approx(row["do_nothing"])
        assert row["sampled"] == pytest.approx(row["do_nothing"], abs=0.03)  # half the resolution
        assert row["view_leak"] == pytest.approx(1)
        assert row["swap"] == pytest.approx(0)
        assert row["grey_leak"] > 0.1
    table = summarise(pairs, perfect, STYLIZATION.metrics, resamples=10)
    assert set(table) == {"all", "dusk", "night"}
    assert table["night"]["L1 do nothing"]["value"] > table["dusk"]["L1 do nothing"]["value"]


def test_without_our_stylizer_its_rows_are_empty(root: Path) -> None:
    row = score_stylization(load_stylization(root)[0], Moved())
    assert np.isnan([row[key] for key in ("full", "stage_1", "sampled", "grey_leak", "stylizer")]).all()


def test_histograms_by_hand() -> None:
    view = np.repeat(np.array([[0, 10, 20, 30]], np.uint8)[..., None], 3, axis=2)
    style = np.repeat(np.array([[200, 100, 50, 250]], np.uint8)[..., None], 3, axis=2)
    assert match_histograms(view, style)[0, :, 0].tolist() == [50, 100, 200, 250]
    picture = textured(40, 50, 1)
    np.testing.assert_allclose(match_histograms(picture, picture), picture, atol=1)


def test_colourfulness_and_recolouring_by_hand() -> None:
    picture = np.zeros((1, 2, 3), np.uint8)
    picture[0, 0] = (255, 0, 0)
    picture[0, 1] = (40, 40, 40)
    assert colourfulness(picture) == pytest.approx(0.5)
    assert recolour(picture)[0].tolist() == [[0, 0, 153], [36, 30, 24]]
