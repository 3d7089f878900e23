"""`make train-smoke`: a tiny network learns on the bundled courtyard, on one CPU core, in a minute."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coam import samples
from coam.training.log import print_line, read_log
from coam.training.run import run_recipe


@pytest.mark.slow
def test_the_loss_falls_on_the_bundled_photos(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in samples.courtyard().day:
        shutil.copy(path, photos)
    outcome = run_recipe("smoke", photos, tmp_path / "run", report=print_line, device="cpu")
    lines = read_log(tmp_path / "run" / "log.jsonl")
    assert outcome.finished
    first, last = (
        {key: sum(line[key] for line in part) / len(part) for key in ("loss", "accuracy")}
        for part in (lines[:4], lines[-4:])
    )
    print(
        f"\nloss {first['loss']:.2f} -> {last['loss']:.2f}, right matches {first['accuracy']:.3f} ->"
        f" {last['accuracy']:.3f}, {outcome.step} steps in {outcome.seconds:.0f} s"
    )
    assert outcome.seconds < 120
    assert last["loss"] < 0.85 * first["loss"]
    assert last["accuracy"] > 2 * first["accuracy"]
