"""A few attacks of every family; `make test-attacks` runs all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from coam.errors import CoamError
from hardening import archives, damaged_files, documents, full_disk, kills, lists, memory, pictures, recipes
from hardening.attempts import Attack, Refused, count, in_child, run_attacks
from hardening.models import make_model

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="attacks run in forked processes")


def survived(attacks: Iterable[Attack], work: Path) -> dict[str, int]:
    """Run them; how often each word, of which none may be a defect."""
    outcomes = run_attacks(attacks, work)
    defects = [str(outcome) for outcome in outcomes if outcome.is_defect]
    assert defects == []
    total: dict[str, int] = {}
    for words in count(outcomes).values():
        for word, number in words.items():
            total[word] = total.get(word, 0) + number
    return total


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    in_child(lambda: make_model(folder))
    return folder / "model"


def test_damaged_pictures(tmp_path: Path) -> None:
    words = survived(pictures.attacks(tmp_path / "in", flips=6, odd=False), tmp_path)
    assert words["refused"] > 20
    assert words["read"] > 5


def test_hostile_archives(tmp_path: Path) -> None:
    assert survived(archives.attacks(tmp_path / "in", every=5), tmp_path)["refused"] > 50


def test_hostile_recipes(tmp_path: Path) -> None:
    assert survived(recipes.attacks(tmp_path / "in", every=29), tmp_path)["refused"] > 60


def test_documents_of_wrong_types(tmp_path: Path, model: Path) -> None:
    words = survived(list(documents.attacks(model, tmp_path / "in", every=97))[::3], tmp_path)
    assert words["refused"] > 30
    assert words["same"] > 5  # a damaged summary does not stop a whole model


def test_lists_that_are_none(tmp_path: Path) -> None:
    chosen = [a for a in lists.attacks(tmp_path) if "too-large" not in a.name][::6]
    assert survived(chosen, tmp_path)["refused"] > 6


def test_flipped_bits_never_give_other_values(tmp_path: Path) -> None:
    words = survived(damaged_files.attacks(tmp_path / "in", flips=12, cuts=3), tmp_path)
    assert words["refused"] > 50


def test_damaged_models(tmp_path: Path, model: Path) -> None:
    assert survived(damaged_files.colmap_attacks(model, flips=3, cuts=2), tmp_path)["refused"] > 30


def test_too_little_memory(tmp_path: Path) -> None:
    chosen = [a for a in memory.attacks(tmp_path) if not a.name.startswith("match")]
    assert survived(chosen, tmp_path) == {"refused": len(memory.LIBRARIES)}


def test_a_full_disk(tmp_path: Path) -> None:
    survived(full_disk.attacks(tmp_path), tmp_path)


def test_a_reconstruction_that_is_killed_ends_like_one_that_is_not(tmp_path: Path) -> None:
    tally = kills.kill_again_and_again(kills.reconstruction(tmp_path / "photos"), tmp_path / "runs", kills=3)
    assert tally.is_whole, tally
    assert (tally.kills, tally.ended >= 1, tally.needed) == (3, True, 10)
    assert tally.done <= tally.ended * tally.needed + tally.kills  # the pair in flight at most


# ---- the counting itself: an attack that breaks something is seen


def _memory_hog(folder: Path) -> str:
    import numpy as np

    return "read" if np.ones(300_000_000).sum() else "silent"


def _several_lines(folder: Path) -> str:
    raise Refused("one\ntwo")


def _leaves(folder: Path) -> str:
    (folder / ".coam-a").write_text("x")
    raise CoamError("a; b")


def _loops(folder: Path) -> str:
    while True:
        pass


def test_every_defect_is_counted_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardening.attempts.SECONDS", 0.2)
    runs = {
        "refused": lambda folder: recipes._by_command(b"7", folder),
        "silent": lambda folder: "silent",
        "traceback": lambda folder: str(1 // 0),
        "crash": lambda folder: os._exit(3),
        "not a line": _several_lines,
        "left": _leaves,
        "memory": _memory_hog,
        "hang": _loops,
        "read": lambda folder: "read",
    }
    monkeypatch.setattr("hardening.attempts.MEGABYTES", 500)
    found = run_attacks([Attack("a", word, run) for word, run in runs.items()], tmp_path)  # type: ignore[arg-type]
    slow = {"memory": "hang", "refused": "hang"}  # on a machine that is slower than that limit
    assert all(outcome.word in (name, slow.get(name)) for name, outcome in zip(runs, found, strict=True)), (
        found
    )
    assert [path for path in tmp_path.iterdir() if path.name.startswith("child")] == []
