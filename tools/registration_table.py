"""The table of docs/register.md: `coam register` beside classical and trained ways, by one command.

    python tools/registration_table.py DATA OUT --groups ALIGNED_VAL [-m cdunet-lite1 ...] [--keep]

DATA holds dev_multimodal/ (hand landmarks). ALIGNED_VAL holds the held-out groups season/ and thermal/ of
aligned photos, as tools/make_training_data.py writes it; of each group two photos are taken, one seen through
a random homography. The courtyard is bundled; its truth is dense. OUT/pairs gets all pairs, OUT/eval the
reports of the one `coam eval registration` that is printed; a run that was killed goes on where it stopped.
Writes docs/results/registration.json; then: make docs-tables.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from docs_tables import RESULTS, Result, markdown, read_result
from make_aligned_benchmark import write_pair as write_aligned
from make_warp_benchmark import write_bundled

from coam import __version__
from coam.data.photo_bank import aligned_groups
from coam.evaluation.matchers.intensities import METHODS
from coam.evaluation.reports.text import figure_cell
from coam.evaluation.runner import Report, read_report
from coam.models.registry import MODELS

MATCHERS = (
    "cdunet-lite1", "aliked+lightglue", "xfeat", "rootsift", "phase-correlation", "ecc", "mutual-information",
)  # fmt: skip
CEILING = "a homography fitted to the marks"  # no plane motion can be nearer to them by much
HELD_OUT = ("season", "thermal")
JITTER, SEED = 0.18, 0  # of the made homographies: how far corners move, in sides


def write_pairs(data: Path, groups: Path, pairs: Path, most: int) -> None:
    """PAIRS/SET[/KIND]/NAME of everything that is there; what is not is named."""
    if (data / "dev_multimodal").is_dir():
        for folder in sorted((data / "dev_multimodal").iterdir()):
            kind, _, number = folder.name.rpartition("_")
            shutil.copytree(folder, pairs / "dev_multimodal" / kind / number)
    else:
        print(f"left out: {data / 'dev_multimodal'} is not there")
    for kind in HELD_OUT:
        if not (groups / kind).is_dir():
            print(f"left out: {groups / kind} is not there")
            continue
        found = aligned_groups(groups / kind)
        rng = np.random.default_rng(SEED)
        for index in np.unique(np.linspace(0, len(found) - 1, min(most, len(found))).astype(int)):
            name = "_".join(found[index][0].parent.relative_to(groups / kind).parts)
            write_aligned(found[index], pairs / kind / name, JITTER, rng)
    bundled = pairs / "bundled"
    write_bundled(bundled)
    for kind in ("courtyard-day", "courtyard-night"):
        shutil.move(bundled / kind, pairs / kind)
    shutil.rmtree(bundled)  # the motorcycle: two views of depth, of which no transform is right


def table(reports: list[Report], command: str) -> Result:
    """A row for each kind of pairs: AUC at 10 px with its interval; share within 5 px."""
    rows = []
    for subset, figures in reports[0]["tables"].items():
        name = "all" if subset == "all" else subset
        cells = [_cell(report["tables"][subset]) for report in reports]
        ceiling = f"{figures['marks within 5 px']['value']:.0%}"
        rows.append([f"{name} ({figures['pairs']['value']:.0f})", *cells, ceiling])
    wrong = [_sure_but_wrong(report) for report in reports]
    rows.append(["sure but wrong, of those accepted (shares of all)", *wrong, "-"])
    seconds = [f"{report['run']['median_seconds_per_pair']:.1f}" for report in reports]
    rows.append(["seconds a pair, median", *seconds, "-"])
    names = [report["matcher"]["matcher"] for report in reports]
    hashes = {name: str(report["matcher"]["model_hash"]) for name, report in zip(names, reports, strict=True)}
    ours = {name: digest for name, digest in hashes.items() if name in MODELS}
    return Result(command, __version__, ours, ["pairs", *names, CEILING], rows)


def with_kept(new: Result, old: Result) -> Result:
    """The columns of `old`, those that `new` has too from there, and then those that only `new` has."""
    names = [*old.columns[1:-1], *(name for name in new.columns[1:-1] if name not in old.columns)]
    rows = []
    for line in new.rows:
        before = dict(zip(old.columns, next(row for row in old.rows if row[0] == line[0]), strict=True))
        cells = before | dict(zip(new.columns, line, strict=True))
        rows.append([line[0], *(cells[name] for name in names), line[-1]])
    columns = [new.columns[0], *names, new.columns[-1]]
    return replace(new, weights=old.weights | new.weights, columns=columns, rows=rows)


def _sure_but_wrong(report: Report) -> str:
    if report["matcher"]["matcher"] in METHODS:
        return "-"  # what they hand over agrees with itself always, so a confidence says nothing
    figures = report["tables"]["all"]
    return f"{figures['sure but wrong']['value']:.3f} of {figures['accepted']['value']:.3f}"


def _cell(figures: dict[str, Any]) -> str:
    return f"{figure_cell(figures['AUC@10'], 'share')}; {figures['within 5 px']['value']:.0%}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--groups", type=Path, required=True, help="folder with season/ and thermal/")
    parser.add_argument("-m", "--matcher", action="append", help="name or .safetensors file; repeatable")
    parser.add_argument("--most", type=int, default=16, help="held-out groups of a kind")
    parser.add_argument(
        "--limit", type=int, help="at most so many pairs, evenly: a trial, no table is written"
    )
    parser.add_argument(
        "--keep", action="store_true", help="columns of matchers that are not named stay as they are"
    )
    options = parser.parse_args()
    pairs = options.out / "pairs"
    if not pairs.is_dir():
        making = options.out / "pairs.part"
        shutil.rmtree(making, ignore_errors=True)
        write_pairs(options.data, options.groups, making, options.most)
        making.rename(pairs)
    names = options.matcher or list(MATCHERS)
    named = [word for name in names for word in ("-m", name)]
    folders = [options.out / "eval" / name for name in names]
    output = folders[0] if len(names) == 1 else options.out / "eval"
    command = ["eval", "registration", "--root", str(pairs), *named, "-o", str(output)]
    if options.limit:
        command += ["--limit", str(options.limit)]
    print("$ coam", shlex.join(command), flush=True)
    subprocess.run([sys.executable, "-m", "coam", *command], check=True)
    shown = "python tools/registration_table.py DATA OUT --groups ALIGNED_VAL"
    result = table([read_report(folder) for folder in folders], shown)
    if options.keep:
        result = with_kept(result, read_result(RESULTS / "registration.json"))
    if options.limit:
        print(markdown(result))
    else:
        result.save(RESULTS / "registration.json")


if __name__ == "__main__":
    main()
