"""The ablation tool: a trained model is told from an untrained one, and the table adds up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tools.ablation import score_source

from coam import samples
from coam.models.registry import DEFAULT_MODEL, build_model, load_model
from coam.training.config import Phase, Recipe, SourceSpec
from coam.training.sources import build_mixture
from support import REPOSITORY


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos_val").mkdir()
    for path in samples.courtyard().day[:2]:
        shutil.copy(path, tmp_path / "photos_val")
    return tmp_path


def test_a_trained_model_finds_what_an_untrained_one_does_not(photos: Path) -> None:
    spec = SourceSpec("plane", "photos_val", light=0.3, options={"zoom": 1.3, "tilt": 20.0})
    recipe = Recipe("held-out", (spec,), (Phase(1, 128),), wrong_pairs=0.0, bank_side=256)
    mixture = build_mixture(recipe, photos, torch.device("cpu"))
    trained = load_model(DEFAULT_MODEL).model.eval()
    torch.manual_seed(0)
    untrained = build_model("stacked", {}).eval()
    good, again, bad = (score_source(m, mixture, 3, 128, seed=5) for m in (trained, trained, untrained))
    assert good == again  # the pairs depend on the seed alone
    assert all(pair.matches > 50 for pair in good)
    assert sum(pair.accuracy[3] for pair in good) / 3 > 0.8
    assert sum(pair.accuracy[3] for pair in bad) / 3 < 0.2
    for pair in good:
        assert list(pair.accuracy) == sorted(pair.accuracy)


def test_the_table_shows_means_and_differences(tmp_path: Path) -> None:
    for variant, seed, value in (("full", 1, 0.6), ("full", 2, 0.8), ("nce", 1, 0.5), ("nce", 2, 0.5)):
        pair = {"accuracy": [0.0, value, 0.9, 1.0], "matches": 10}
        sets = {name: [pair, pair] for name in ("planes", "worlds", "seasons", "thermal")}
        entry = {"variant": variant, "seed": seed, "pairs": sets}
        (tmp_path / f"{variant}-{seed}.json").write_text(json.dumps(entry))
    printed = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / "ablation.py"), "table", str(tmp_path)],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert printed[2].startswith("| full (seeds 1, 2) | .700 (.600, .800) |")
    assert ".500, -.200 [-.200, -.200]" in printed[3]
