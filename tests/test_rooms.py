"""Who imports whom: the table of docs/architecture.md, checked against every file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import coam

PACKAGE = Path(coam.__file__).parent
BELOW_EVERYTHING = {"types", "errors", "tensors", "fused", "__version__"}
MAY_IMPORT = {
    "geometry": set(),
    "losses": set(),
    "models": {"storage"},
    "storage": set(),
    "matching": {"geometry"},
    "bit_depth": set(),
    "images": {"bit_depth"},
    "resizing": {"geometry", "images"},
    "arguments": {"images"},
    "samples": {"geometry"},
    "dense_matching": {"matching", "models"},
    "export": {"models"},
    "backends": {"models", "export"},
    "looks": {"geometry", "images", "resizing"},
    "matcher": {
        "arguments",
        "backends",
        "dense_matching",
        "graphed_matching",
        "looks",
        "matching",
        "models",
        "images",
        "geometry",
        "explanation",
        "resizing",
    },
    "explanation": {"viz"},
    "graphed_matching": {"backends", "dense_matching", "matching", "models"},
    "tiles": {"matcher", "matching", "images"},
    "viz": {"explanation", "geometry", "images"},
    "data": {"geometry", "images", "models", "storage"},
    "training": {"data", "dense_matching", "losses", "models", "storage", "viz"},
    "sfm": {"geometry", "images", "viz"},
    "distributed": {"sfm"},
    "evaluation": {"matcher", "matching", "models", "sfm", "geometry", "images", "viz"},
    "stylization": {
        "data",
        "geometry",
        "images",
        "matcher",
        "matching",
        "models",
        "storage",
        "training",
        "viz",
    },
    "app": {"dense_matching", "explanation", "matcher", "models", "images", "samples", "stylization", "viz"},
}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported_rooms(path: Path) -> set[str]:
    """Rooms of the package that a file imports anywhere, inside functions too."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"coam.{alias.name}" for alias in node.names]
            modules |= set(inside) if node.module == "coam" else {node.module}
    return {name.split(".")[1] for name in modules if name.startswith("coam.")}


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    files = [path for path in PACKAGE.rglob("*.py") if room_of(path) == room]
    assert files
    allowed = MAY_IMPORT[room] | BELOW_EVERYTHING | {room}
    too_much = {str(f.relative_to(PACKAGE)): sorted(imported_rooms(f) - allowed) for f in files}
    assert {name: rooms for name, rooms in too_much.items() if rooms} == {}


def test_no_room_is_called_utils() -> None:
    names = {path.stem for path in PACKAGE.rglob("*.py")}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc"}
