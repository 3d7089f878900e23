"""Mutations of a small source by hand: what is changed, and what is left alone."""

from __future__ import annotations

import sys

from support import REPOSITORY

sys.path.append(str(REPOSITORY / "tools" / "mutants"))

from mutations import mutations_of  # isort: skip
from run import read_equivalent  # isort: skip

SOURCE = '''"""Text."""

LIMIT = 3


def area(width: int, height: int = 2, name: str = "a") -> float:
    """Text 1 + 1."""
    if width < 0:
        raise ValueError("below 0")
    total = max(width * height, 1e-9)
    total += -width
    return total if name == "a" and not LIMIT else 0.5
'''


def test_mutations_by_hand() -> None:
    made = mutations_of("a.py", SOURCE)
    assert [(m.old, m.new) for m in made] == [
        ("width < 0", "(width > 0)"),
        ("0", "(1)"),
        ("max(width * height, 1e-9)", "(min(width * height, 1e-09))"),
        ("width * height", "(width / height)"),
        ("total += -width", "pass"),
        ("-width", "(width)"),
        ('name == "a" and not LIMIT', "(name == 'a' or not LIMIT)"),
        ('name == "a"', "(name != 'a')"),
        ("not LIMIT", "(LIMIT)"),
        ("0.5", "(1.0)"),
    ]
    assert {m.function for m in made} == {"area"}
    assert made[0].lines == (8, 8)


def test_what_is_left_alone() -> None:
    source = """
def f(a, b):
    assert len(a) > 0
    if len(b) > 9:
        raise ValueError(f"{len(b) + 1}")
    return [x for x, y in zip(a.reshape(-1, 2), b.sort(stable=True), strict=True)]
"""
    found = [(m.old, m.new) for m in mutations_of("a.py", source)]
    assert found == [("len(b) > 9", "(len(b) < 9)"), ("9", "(10)"), ("2", "(3)")]


def test_a_mutation_changes_its_place_only_and_still_compiles() -> None:
    for mutation in mutations_of("a.py", SOURCE):
        changed = mutation.apply(SOURCE)
        compile(changed, "a.py", "exec")
        lines = enumerate(zip(SOURCE.splitlines(), changed.splitlines(), strict=True), 1)
        assert [number for number, (old, new) in lines if old != new] == [mutation.lines[0]]


def test_every_name_is_its_own_and_a_changed_function_is_tried_again() -> None:
    twice = "def f(x):\n    return x + 1 + 1\n"
    names = [mutation.name for mutation in mutations_of("a.py", twice)]
    assert len(set(names)) == len(names)
    assert (
        mutations_of("a.py", twice)[0].around
        != mutations_of("a.py", twice.replace("+ 1\n", "+ 2\n"))[0].around
    )


def test_what_is_called_equivalent_exists_and_says_why() -> None:
    for name, reason in read_equivalent().items():
        path = name.split("::")[0]
        source = (REPOSITORY / "src" / path).read_text()
        made = mutations_of(path, source)
        assert name in {m.name for m in made} | {f"{m.path}::{m.function}: *" for m in made}, name
        assert len(reason) > 10
