"""The real command line in this process, with the real matcher, loaded once for each set of options."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from PIL import Image

import coam.matcher.matcher
from coam.cli import build_app

Run = Callable[..., Any]


load_once = cache(coam.matcher.matcher.load_matcher)


@pytest.fixture
def _one_matcher() -> Iterator[None]:
    """Only while a test of the command line runs: others write weights anew and load them again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coam.matcher.matcher, "load_matcher", load_once)
        yield


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    exit_code: int
    stdout: str
    stderr: str
    exception: Exception | None

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@cache
def command() -> Any:
    return typer.main.get_command(build_app())  # typer's own runner would build it anew for every call: 50 ms


def invoke(*arguments: object) -> Result:
    """Run `coam` with these arguments; the streams encode strictly, as those of a terminal do."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code, exception = 0, None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            command().main([str(argument) for argument in arguments], prog_name="coam")
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:
            code, exception = 1, error
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return Result(code, texts[0], texts[1], exception)


@pytest.fixture
def run(_one_matcher: None) -> Run:
    """`run("match", a, b, ...)` gives the result: exit_code, stdout, stderr, exception."""
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
