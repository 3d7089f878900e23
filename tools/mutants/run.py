"""How many small slips in the mathematical rooms the tests notice: mutants, and the share that is killed.

    python tools/mutants/run.py --sample 150 --seed 0

Each mutant is one change (mutations.py) and meets the tests of its room that run its line, quickest
first. It is killed when one of them fails, or when they take many times longer than without it. Results
are appended to out/mutants/results.jsonl: a run that was stopped goes on where it was, and a function
that has changed since is tried again. `--again` tries the survivors once more, after tests were written.

Mutants that change nothing anybody could see are named in equivalent.txt, each with its reason, and do
not count; nor does code that runs on other machines only (`FUNCTION: *`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mutations import Mutation, mutations_of
from trial import lines_of_tests, load_heavy_packages, try_mutant

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("geometry", "losses", "matching", "sfm/tracks", "sfm/verification", "evaluation/metrics")
# Tests of a room that lie elsewhere, beside tests/ROOM
ALSO = {"geometry": ("data/test_depth.py",), "losses": ("training/test_objective.py",)}
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
LEAST_LIMIT, TIMES_LONGER = 30.0, 8.0  # seconds; of the tests' own time


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=150, help="how many mutants; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, choices=ROOMS)
    parser.add_argument("--again", action="store_true", help="try survivors of earlier runs again")
    parser.add_argument("--only", default="", help="only mutants whose name holds this text")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src")]
    os.environ["PYTHONPATH"] = str(ROOT / "src")  # of the processes that tests start

    sample = [m for m in sampled(options.rooms, options.sample, options.seed) if options.only in m.name]
    results = Results(options.out / "results.jsonl")
    reasons = read_equivalent()
    waiting = [m for m in sample if not reason_of(m, reasons) and results.needs(m, options.again)]
    if waiting:
        load_heavy_packages()
    lines = {
        room: room_lines(room, options.out) for room in options.rooms if any(is_in(m, room) for m in waiting)
    }
    for number, mutation in enumerate(waiting, 1):
        found = try_one(mutation, lines[next(r for r in options.rooms if is_in(mutation, r))], options.out)
        results.add(mutation, found)
        print(f"{number}/{len(waiting)} {found:9s} {mutation.name}", flush=True)
    report(sample, results, reasons)


def sampled(rooms: list[str], count: int, seed: int) -> list[Mutation]:
    """A sample of the mutations of all rooms, the same for the same seed and source."""
    every: list[Mutation] = []
    for room in sorted(rooms):
        for path in sorted((ROOT / "src" / "coam" / room).rglob("*.py")):
            every += mutations_of(str(path.relative_to(ROOT / "src")), path.read_text(encoding="utf-8"))
    chosen = every if count == 0 else random.Random(seed).sample(every, min(count, len(every)))
    print(f"{len(every)} mutants in {', '.join(rooms)}; {len(chosen)} of them here (seed {seed})", flush=True)
    return sorted(chosen, key=lambda mutation: mutation.name)


def is_in(mutation: Mutation, room: str) -> bool:
    return mutation.path.startswith(f"coam/{room}/")


def room_lines(room: str, out: Path) -> dict[str, Any]:
    """Which tests run which lines of the room; kept while neither the room nor its tests change."""
    code = ROOT / "src" / "coam" / room
    tests = [ROOT / "tests" / place for place in (room, *ALSO.get(room, ()))]
    digest = hashlib.sha256()
    for path in sorted(
        path for place in (code, *tests) for path in (place, *place.rglob("*.py")) if path.is_file()
    ):
        digest.update(path.read_bytes())
    name = f"lines-{room.replace('/', '-')}-{digest.hexdigest()[:12]}"
    kept = out / f"{name}.json"
    if not kept.is_file():
        print(f"which test of {room} runs which line ...", flush=True)
        lines_of_tests(code, [str(place) for place in tests], out / f"{name}.log")
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def try_one(mutation: Mutation, lines: dict[str, Any], out: Path) -> str:
    path = ROOT / "src" / mutation.path
    hits = lines["lines"].get(str(path), {})
    tests = {test for n in range(mutation.lines[0], mutation.lines[1] + 1) for test in hits.get(str(n), ())}
    if not tests:
        return "not run"
    seconds = lines["seconds"]
    limit = max(LEAST_LIMIT, TIMES_LONGER * sum(seconds[test] for test in tests))
    module = mutation.path.removesuffix(".py").replace("/", ".")
    source = mutation.apply(path.read_text(encoding="utf-8"))
    return try_mutant(
        module, str(path), source, sorted(tests, key=seconds.__getitem__), limit, out / "last.log"
    )


class Results:
    """What became of each mutant, by its name and the text of its function."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[tuple[str, str], str] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):  # the last one may be cut off
                    entry = json.loads(line)
                    self.known[(entry["name"], entry["around"])] = entry["found"]

    def of(self, mutation: Mutation) -> str | None:
        return self.known.get((mutation.name, mutation.around))

    def needs(self, mutation: Mutation, again: bool) -> bool:
        found = self.of(mutation)
        return found is None or (again and found in ("survived", "not run"))

    def add(self, mutation: Mutation, found: str) -> None:
        self.known[(mutation.name, mutation.around)] = found
        entry = {"name": mutation.name, "around": mutation.around, "found": found, "time": int(time.time())}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def read_equivalent() -> dict[str, str]:
    """Names of mutants that nobody could tell from the code as it is, with the reason (the indented line)."""
    reasons: dict[str, str] = {}
    name = ""
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("    ") and name:
            reasons[name] = line.strip()
        elif line and not line.startswith("#"):
            name = line.strip()
    return reasons


def reason_of(mutation: Mutation, reasons: dict[str, str]) -> str:
    """Why a mutant does not count; empty: it does."""
    of_function = f"{mutation.path}::{mutation.function}: *"
    return reasons.get(mutation.name) or reasons.get(of_function, "")


def report(sample: list[Mutation], results: Results, reasons: dict[str, str]) -> None:
    counts = Counter(results.of(m) or "?" for m in sample if not reason_of(m, reasons))
    equivalent = sum(bool(reason_of(m, reasons)) for m in sample)
    for mutation in sample:
        if not reason_of(mutation, reasons) and results.of(mutation) in ("survived", "not run"):
            print(f"{results.of(mutation)}: {mutation.name} (line {mutation.lines[0]})")
    meaningful = len(sample) - equivalent
    killed = counts["killed"] + counts["timeout"]
    print(
        f"{killed} of {meaningful} killed ({100 * killed / max(meaningful, 1):.1f} %; "
        f"{counts['timeout']} by time), {counts['survived']} survived, "
        f"{counts['not run']} on lines that no test runs; "
        f"{equivalent} more do not count (tools/mutants/equivalent.txt)"
    )


if __name__ == "__main__":
    main()
