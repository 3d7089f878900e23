"""All attacks, with counts: `make test-attacks` (the better part of an hour on two cores).

Ends with 1 where there was a defect: a traceback, a hang, silent damage, something left behind, another
result.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes are forked: nobody may have started threads before

from hardening import (
    archives,
    damaged_files,
    documents,
    full_disk,
    kills,
    lists,
    memory,
    pictures,
    recipes,
    requests,
)
from hardening.attempts import DEFECTS, Attack, Outcome, count, in_child, run_attacks
from hardening.models import make_model

FAMILIES = {
    "pictures": "flipped bits and cut ends of every format, odd modes, sizes and places",
    "archives": "`.npz` that are encrypted, cut, lying, nested, pickled, or expand to `6 GB`",
    "recipes": "YAML that is none, nests or refers to itself; every setting with values of every kind",
    "documents": "settings, summaries, model cards, reports: wrong types, huge numbers, deep nesting, things "
    "that are gone; with and without a checksum",
    "lists": "`--pairs`, `--cameras`: any bytes, any numbers, pipes, folders",
    "damaged files": "flipped bits and cut ends in every format of ours: noticed, or without effect",
    "damaged models": "the same in `sparse/*.bin` and `keypoints.h5`, with our checksums and without",
    "memory": "what libraries say where they find none",
    "full disk": "every saver on a file system of `1 MB` and with files that may not grow",
    "requests": "paths, headers, bodies and uploads to the running app",
    "calls": "every endpoint of the app's API, each argument of every kind",
    "kills": "runs that get SIGKILL at any moment, again and again",
}
KILLED: dict[str, Callable[[Path], kills.Work]] = {
    "reconstruction": lambda place: kills.reconstruction(place / "photos"),
    "dense": lambda place: kills.dense_points(place / "to-be-dense", place / "photos-of-it"),
    "training": lambda place: kills.training(place / "data"),
}


def corpus(place: Path, many: int) -> dict[str, Callable[[], Iterable[Attack]]]:
    """The attacks of every family that runs in forked processes. many: flipped bits of every kind of file."""
    return {
        "pictures": lambda: pictures.attacks(place / "pictures", flips=many),
        "archives": lambda: archives.attacks(place / "archives"),
        "recipes": lambda: recipes.attacks(place / "recipes"),
        "documents": lambda: documents.attacks(
            place / "model", place / "documents", every=max(1, 200 // many)
        ),
        "lists": lambda: lists.attacks(place / "lists"),
        "damaged files": lambda: damaged_files.attacks(place / "files", flips=many, cuts=20),
        "damaged models": lambda: damaged_files.colmap_attacks(place / "model", flips=many // 4, cuts=10),
        "memory": lambda: memory.attacks(place / "memory"),
        "full disk": lambda: full_disk.attacks(place / "disk"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--many", type=int, default=200, help="flipped bits of every kind of file")
    parser.add_argument("--kills", type=int, default=100, help="of each kind of run")
    parser.add_argument(
        "--runs", nargs="+", choices=tuple(KILLED), default=tuple(KILLED), help="that are killed"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    bad, total = 0, Counter[str]()
    print("| family | what | attacks | refused in one line | read, or the same | defects |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if {"documents", "damaged models"} & set(options.families):
            in_child(lambda: make_model(place))
        for family, attacks in corpus(place, options.many).items():
            if family in options.families:
                with timed(family):
                    outcomes = run_attacks(attacks(), place / "work")
                total.update(outcome.word for outcome in outcomes)
                bad += tell(family, outcomes)
        for family, attack in (("requests", requests.attack_app), ("calls", requests.attack_api)):
            if family in options.families and not find_spec("gradio"):
                print(f"{family}: not tried, the web app is not installed", file=sys.stderr)
            elif family in options.families:
                with timed(family):
                    bad += tell_requests(family, attack(place))
        if "kills" in options.families:
            print(f"\n{kills.HEAD}")
            for work in (KILLED[name](place) for name in options.runs):
                runs = place / work.name.replace(" ", "-")
                with timed(f"kills of {work.name}"):
                    tally = kills.kill_again_and_again(work, runs, options.kills, options.seed)
                print(tally, flush=True)
                bad += not tally.is_whole
                for line in (tally.failed + tally.different + tally.left)[:5]:
                    print(f"  {line}", file=sys.stderr)
    print(f"\n{total.total():,} attacks on files: {', '.join(f'{total[word]} {word}' for word in DEFECTS)}")
    sys.exit(bool(bad))


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Says beside the table how long it took."""
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def tell(family: str, outcomes: list[Outcome]) -> int:
    """A line of the table, and every defect; how many there are."""
    counts = count(outcomes)[family]
    defects = [outcome for outcome in outcomes if outcome.is_defect]
    right = counts["read"] + counts["same"]
    tell_counts(family, len(outcomes), counts["refused"], right, len(defects))
    for outcome in defects:
        print(str(outcome)[-1200:], file=sys.stderr, flush=True)
    return len(defects)


def tell_counts(family: str, *counts: int) -> None:
    """A line of the table."""
    cells = (family, FAMILIES[family], *(f"{count:,}" for count in counts))
    print(f"| {' | '.join(cells)} |", flush=True)


def tell_requests(family: str, found: dict[str, list[str]]) -> int:
    """The same of requests to the app, or calls of its API."""
    defects = {word: names for word, names in found.items() if word in requests.DEFECTS}
    number = sum(map(len, found.values()))
    refused = sum(len(found[word]) for word in found if word[0] == "4" or word in ("closed", "refused"))
    wrong = sum(map(len, defects.values()))
    tell_counts(family, number, refused, number - refused - wrong, wrong)
    for word, names in defects.items():
        print(f"{word}: {names[:5]}", file=sys.stderr, flush=True)
    return wrong


if __name__ == "__main__":
    began = time.monotonic()
    try:
        main()
    finally:
        print(f"{(time.monotonic() - began) / 60:.0f} minutes", file=sys.stderr)
