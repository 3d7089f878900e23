"""The real command line in this process, with the real matcher, loaded once for each set of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import coam.matcher
from coam.cli import build_app

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def _one_matcher() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(coam.matcher, "load_matcher", cache(coam.matcher.load_matcher))
    yield
    patch.undo()


@pytest.fixture
def run(_one_matcher: None) -> Run:
    """`run("match", a, b, ...)` gives the result: exit_code, stdout, stderr, exception."""
    app, runner = build_app(), CliRunner()

    def invoke(*arguments: object) -> Any:
        return runner.invoke(app, [str(argument) for argument in arguments])

    return invoke


def texture(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Smooth random colours with detail at several scales, (height, width, 3) uint8."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells in (3, 6, 12, 24):
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC), dtype=float)
    return (total / 4).astype(np.uint8)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two photos of one texture, the second moved by (16, 8)."""
    whole = texture(160, 128)
    paths = tmp_path / "a.png", tmp_path / "b.png"
    Image.fromarray(whole[:96, :128]).save(paths[0])
    Image.fromarray(whole[8:104, 16:144]).save(paths[1])
    return paths
