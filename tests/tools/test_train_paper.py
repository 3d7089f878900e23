"""The training of the paper's network: its tables add up, and its two recipes fit together."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from coam.training.config import load_recipe
from support import REPOSITORY
from tools import train_paper

SETS = ("planes", "worlds", "seasons", "thermal")


def entry(values: list[float], **more: object) -> str:
    pairs = [{"accuracy": [0.0, value, 0.9, 1.0], "matches": 10} for value in values]
    return json.dumps({"pairs": dict.fromkeys(SETS, pairs), **more})


def test_tables_show_the_course_and_what_the_hinge_changed(tmp_path: Path) -> None:
    log = [{"step": k, "accuracy": value} for k, value in enumerate((0.1, 0.2, 0.3))]
    (tmp_path / "0.json").write_text(entry([0.2, 0.4], variant="published", log=log))
    (tmp_path / "cdunet-paper-lite1.json").write_text(entry([0.5, 0.7]))
    (tmp_path / "cdunet-paper-lite1-hinge.json").write_text(entry([0.6, 0.8]))
    printed = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / "train_paper.py"), "table", str(tmp_path)],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    name = "as published: hinge, Adam 1e-4, frozen encoder"
    assert printed[2] == f"| {name} | .100 .200 .300 | .300 | .300 | .300 | .300 |"
    row = next(line for line in printed if line.startswith("| seasons"))
    expected = ".000 .600 .900 1.000 | .000 .700 .900 1.000 | +.100 [+.100, +.100] |"
    assert row == f"| seasons | {expected}"


def test_the_second_part_changes_loss_and_schedule_only() -> None:
    first, second = load_recipe("cdunet-paper-lite1"), load_recipe("cdunet-paper-lite1-hinge")
    assert (first.loss.kind, second.loss.kind) == ("nce", "hinge")
    assert replace(second.loss, kind="nce") == first.loss
    assert second.sources == first.sources
    assert not second.loss.constant_weight  # the paper's c_x
    assert second.loss.hardest == 3
    assert second.optimiser.lr < first.optimiser.lr


def test_the_ablation_differs_in_conditioning_alone(tmp_path: Path) -> None:
    with_it, without = (
        train_paper.ablation_recipes(tmp_path, conditioning, 2) for conditioning in (True, False)
    )
    assert [recipe.loss.kind for recipe in with_it.values()] == ["nce", "hinge"]
    assert [recipe.loss.kind for recipe in without.values()] == ["nce", "hinge"]
    first, bare = with_it["nce"], without["nce-no-conditioning"]
    assert (first.model.config["conditioning"], bare.model.config["conditioning"]) == (True, False)
    assert replace(bare, model=first.model) == first
    assert with_it["full"].model.start == str(tmp_path / "nce-2" / "model.safetensors")
    assert without["no-conditioning"].model.start == str(
        tmp_path / "nce-no-conditioning-2" / "model.safetensors"
    )
    assert replace(without["no-conditioning"], model=with_it["full"].model) == with_it["full"]
    assert {recipe.seed for recipe in (*with_it.values(), *without.values())} == {2}


def test_the_ablation_is_compared_loss_by_loss(tmp_path: Path) -> None:
    values = {"full": 0.6, "no-conditioning": 0.5, "nce": 0.4, "nce-no-conditioning": 0.4}
    for name, value in values.items():
        (tmp_path / f"{name}-1.json").write_text(entry([value, value], variant=name, seed=1))
    rows = train_paper.ablation_table(tmp_path).splitlines()[2:6]
    assert [row.split("|")[2].strip() for row in rows] == [
        ".600 (.600)", ".500, -.100 [-.100, -.100]", ".400 (.400)", ".400, +.000 [+.000, +.000]"
    ]  # fmt: skip
