"""The house rules: who may import whom (the table of docs/architecture.md), and one way to do each thing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import coam
from support import REPOSITORY

PACKAGE = Path(coam.__file__).parent
SPLIT = {"sfm", "evaluation"}  # rooms whose sub-rooms have lines of their own
LOOSE = {"types", "errors", "tensors", "caches", "progress"}  # below everything


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def room_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in SPLIT else parts[0]


def table() -> dict[str, set[str]]:
    """room -> rooms that it may import, from the page."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    block = text[text.index("## Who may import whom") :]
    lines = re.findall(r"^(\S+) +->(.*)$", block[: block.index("\n## ", 4)], flags=re.M)
    assert lines
    return {room: {name.strip() for name in names.split(",") if name.strip()} for room, names in lines}


@cache
def names_used(path: Path) -> frozenset[str]:
    """Modules of the package that a file imports anywhere, inside functions and by name too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.List | ast.Tuple):
            found |= commands_started(node)
    inside = {name.removeprefix("coam.") for name in found if name.startswith("coam.")}
    return frozenset(name for name in map(existing, inside) if name)


def commands_started(node: ast.List | ast.Tuple) -> set[str]:
    """`[sys.executable, "-m", "coam", "sfm", ...]` runs the command line in another process."""
    words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
    for first, second in pairwise(words):
        if (first, second) == ("-m", "coam"):
            return {"coam.cli"}
    return set()


def existing(name: str) -> str:
    """The longest beginning of a dotted name that is a module."""
    parts = name.split(".")
    while parts:
        place = PACKAGE.joinpath(*parts)
        if place.is_dir() or place.with_suffix(".py").is_file():
            return ".".join(parts)
        parts.pop()
    return ""


def test_the_table_names_every_room() -> None:
    rooms = {room_of(module_of(path)) for path in files()} - LOOSE - {"", "__main__", "cli"}
    rooms -= SPLIT  # their __init__ files
    assert set(table()) == rooms


@pytest.mark.parametrize("room", sorted(table()))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = table()[room] | LOOSE | {room}
    allowed |= {f"{name}.*" for name in allowed}
    too_much: dict[str, list[str]] = {}
    for path in files():
        if room_of(module_of(path)) != room:
            continue
        used = {room_of(name) for name in names_used(path)}
        wrong = {u for u in used if u not in allowed and u.split(".")[0] not in allowed and u not in SPLIT}
        if wrong:
            too_much[str(path.relative_to(PACKAGE))] = sorted(wrong)
    assert too_much == {}


def test_types_and_tensors_reach_up_in_two_places_only() -> None:
    """`Matches` saves, draws and explains itself; `tensors` alone asks about fused kernels."""
    reached = {
        path.stem: {room_of(name) for name in names_used(path)} - LOOSE
        for path in PACKAGE.glob("*.py")
        if path.stem in LOOSE
    }
    assert reached == {
        "types": {"geometry", "store", "viz"},
        "errors": set(),
        "tensors": {"kernels"},
        "caches": set(),
        "progress": set(),
    }


def test_the_loose_modules() -> None:
    loose = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert loose == LOOSE


def test_no_room_is_called_utils() -> None:
    names = {path.stem for path in files()}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc"}


# What may stand in one place only: pattern -> files below the package in which it may.
ONE_PLACE = {
    r"\bos\.(replace|rename)\(|\.rename\(|mkstemp|NamedTemporaryFile": {
        "store/atomic.py",
        "store/journal.py",
    },
    # One validating reader for what others wrote: not pip's note, nor what has just been written.
    r"json\.loads?\((?!json\.dumps)|yaml\.load\(": {
        "errors.py",
        "store/documents.py",
        "store/tensor_files.py",
    },
    r"^import pickle|^from pickle": {"store/archives.py", "models/encoders/checkpoints.py"},
    r"rich\.progress": {"progress.py"},
    r"OrderedDict|\.popitem\(": {"caches.py"},
    r"PHOTO_ENDINGS\b.*=": {"images/folder.py"},
    r"class PairMatcher\b": {"types.py"},
    r"^\s*(import|from) triton": "kernels",
    r"torch\.cuda\.(CUDAGraph|graph)\(": {"kernels/graphs.py", "training/run.py"},
    r"can_fuse\(": {"kernels/availability.py", "tensors.py"},
    r"def (rotation_angle|angle_between|cross_matrix|skew\w*|sampson\w*)\(": "geometry",
    r"extract_features\(": {"sfm/sift.py"},
    r"(import|from) safetensors": {"store/tensor_files.py"},
    r"torch\.optim\b.*\(": "training",
    r"ProcessPoolExecutor|get_context|import ray\b": {
        "sfm/workers/processes.py",
        "sfm/workers/ray_actors.py",
    },
}


@pytest.mark.parametrize("pattern", sorted(ONE_PLACE))
def test_one_way_to_do_a_thing(pattern: str) -> None:
    allowed = ONE_PLACE[pattern]
    there = {
        path.relative_to(PACKAGE).as_posix()
        for path in files()
        if re.search(pattern, path.read_text(encoding="utf-8"), flags=re.M)
    }
    elsewhere = {
        name
        for name in there
        if (name.split("/")[0] != allowed if isinstance(allowed, str) else name not in allowed)
    }
    assert elsewhere == set()
    assert there  # a rule about nothing would hold for ever


def test_matching_on_a_cpu_imports_no_kernel() -> None:
    code = (
        "import sys, numpy as np, coam\n"
        "rgb = np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8)\n"
        "coam.match(rgb, rgb, device='cpu', resolution=128)\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'triton'"
        " or name.startswith(('coam.kernels', 'coam.matching.graphed', 'coam.backends.cuda_graphs'))))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_no_test_imports_another_test_or_a_benchmark() -> None:
    wrong = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) and node.module else ""
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [module]
            if any(re.match(r"(tests?\b|benchmarks\b|.*\btest_)", name) for name in names):
                wrong.append(path.name)
    assert wrong == []
