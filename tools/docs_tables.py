"""The figures of README and docs from docs/results/*.json: one source for each.

    python tools/docs_tables.py                     # `make docs-tables`: write them into the pages
    python tools/docs_tables.py --check             # what differs from its source or has none
    python tools/docs_tables.py --measure [NAME]    # `make results DATA=FOLDER`: run the commands again
    python tools/docs_tables.py --adopt NAME --command TEXT [--printed 0] [--model MODEL]    # a new block

A page holds a table between `<!-- table: NAME -->` and `<!-- end of table -->`, and text with figures
between `<!-- figures: NAME -->` and `<!-- end of figures -->`. docs/results/NAME.json holds the table, or
the figures of the text in their order, and says which command printed them (or who published them), with
which version and weights. Under each block stands a line with these; where the weights are no longer those
in the package, it says so.

--measure runs the commands of the tables named, or of all whose weights have changed: in the repository's
root, with the folders $DATA (what the maintainers' data holds) and $OUT. What was copied by hand from what
a command prints is named, and stays marked. --adopt makes the source of a new block, or of a text that was
edited, from the page itself, or with --printed from what the command prints.

`Code` (settings, formats) is no figure. Everything else that looks measured needs a block.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from coam import __version__
from coam.models.registry import packaged_weights
from coam.store.atomic import write_json, write_text
from coam.store.documents import read_json

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "docs" / "results"
BLOCK = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", re.DOTALL)
PROSE = re.compile(r"<!-- figures: (\S+) -->\n(.*?)<!-- end of figures -->", re.DOTALL)
INSIDE = re.compile(r"(?<=[^\n]\n)<!-- (?:table|figures): .*-->|<!-- end of (?:table|figures) -->(?=\n[^\n])")
STAMP = re.compile(r"\n\n<sub>[^\n]*</sub>\n$")
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)\s]*\)|https?://\S+", re.DOTALL)
VERSIONS = re.compile(
    r"\b(Python|torch|Triton|CUDA|v|version|sections?|eqs?\.) ?v?\d+(\.\d+)*(( to|,| and) \d\S*)?"
)
MEASURED = re.compile(r"(?<![\w.-])\d*\.\d+\b|\d %|\d (ms|s|seconds|GB|GiB|pairs/s)\b")
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?|\.\d+")


@dataclass(frozen=True)
class Result:
    """A table with all that its figures depend on."""

    command: str  # that printed it, or who published it
    version: str  # of coam; empty: none matters
    weights: dict[
        str, str
    ]  # model -> SHA-256 of its file, or words where that is not known; empty: none matters
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)  # of a text, in place of a table
    printed: int | None = None  # which of the Markdown tables that `command` prints; None: copied by hand

    def save(self, path: Path) -> None:
        """Write the source of a table."""
        given = {key: value for key, value in vars(self).items() if value not in ([], None)}
        write_json(path, given, indent=1)


def read_result(path: Path) -> Result:
    """The source of a table; a row of another length than the columns is an error."""
    if not path.is_file():
        raise SystemExit(
            f"{path.name} is not there: python tools/docs_tables.py --adopt {path.stem} makes it"
        )
    content: dict[str, Any] = read_json(path, dict, "tools/docs_tables.py says what it holds")
    result = Result(**content)
    for row in result.rows:
        if len(row) != len(result.columns):
            raise SystemExit(
                f"{path.name}: the row {row[0]!r} has {len(row)} cells, not {len(result.columns)}"
            )
    return result


def weights_now(model: str) -> str | None:
    """SHA-256 of a model's file in the package."""
    path = packaged_weights(model)
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def is_stale(result: Result) -> bool:
    """Are these figures of other weights than those in the package?"""
    return any(digest != weights_now(model) for model, digest in result.weights.items())


# ---- pages


def table_text(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, as tools print it."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def markdown(result: Result) -> str:
    """The table and the line below it."""
    return "\n".join([table_text(result.columns, result.rows), "", stamp(result), ""])


def stamp(result: Result) -> str:
    """Command, version and weights of a table, in one line."""
    parts = [result.command]
    if result.version:
        parts.append(f"coam {result.version}")
    for model, digest in result.weights.items():
        if not re.fullmatch(r"[0-9a-f]{64}", digest):  # not recorded: what is known stands there in words
            parts.append(f"weights {model} {digest}")
            continue
        other = "" if weights_now(model) == digest else ", not those in the package now"
        parts.append(f"weights {model} {digest[:8]}{other}")
    return f"<sub>{'; '.join(parts)}.</sub>"


def pages() -> list[Path]:
    """README and docs, and the model cards."""
    cards = REPOSITORY / "src" / "coam" / "weights"
    return [
        REPOSITORY / "README.md",
        *sorted((REPOSITORY / "docs").glob("*.md")),
        *sorted(cards.glob("*.md")),
    ]


def filled(text: str, results: Path | None = None) -> str:
    """A page with every table and every stamp as the sources have them."""
    results = results or RESULTS

    def table(found: re.Match[str]) -> str:
        body = markdown(read_result(results / f"{found[1]}.json"))
        return f"<!-- table: {found[1]} -->\n{body}<!-- end of table -->"

    def prose(found: re.Match[str]) -> str:
        body = STAMP.sub("\n", found[2])
        line = stamp(read_result(results / f"{found[1]}.json"))
        return f"<!-- figures: {found[1]} -->\n{body}\n{line}\n<!-- end of figures -->"

    return PROSE.sub(prose, BLOCK.sub(table, text))


def figures_of(prose: str) -> list[str]:
    """The numbers of a text, in their order, without those of code, links and the stamp."""
    return NUMBER.findall(CODE.sub("", STAMP.sub("\n", prose)))


def misquoted(text: str, results: Path | None = None) -> list[str]:
    """Blocks of text whose figures are not those of their source."""
    return [
        name
        for name, prose in PROSE.findall(text)
        if figures_of(prose) != read_result((results or RESULTS) / f"{name}.json").figures
    ]


def differing() -> list[Path]:
    """Pages whose tables are not those of their sources."""
    return [
        page
        for page in pages()
        if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")
    ]


def unsourced(text: str) -> list[str]:
    """Lines of a page with figures that look measured and have no source."""
    for known in (BLOCK, PROSE, CODE, VERSIONS):
        text = known.sub("", text)
    return [line for line in text.splitlines() if MEASURED.search(line)]


def problems() -> list[str]:
    """What --check finds, a line each."""
    found = [f"{page.name}: differs from its sources (make docs-tables)" for page in differing()]
    for page in pages():
        text = page.read_text(encoding="utf-8")
        found += [f"{page.name}: not the figures of docs/results/{name}.json" for name in misquoted(text)]
        found += [f"{page.name}: no source: {line}" for line in unsourced(text)]
        found += [f"{page.name}: no empty line beside: {mark}" for mark in INSIDE.findall(text)]
    return found


def adopt(name: str, command: str | None, models: list[str], printed: int | None) -> None:
    """Make the source of a block of what the page says, copied by hand; with `printed`, of what is measured.

    Without a command a block that has a source was edited: its command, version and weights stay.
    """
    path = RESULTS / f"{name}.json"
    if command is not None:
        weights = {model: weights_now(model) or "none" for model in models}
        new = Result(command, version_now(), weights, printed=printed)
    elif path.is_file():
        new = read_result(path)
    else:
        raise SystemExit(f"{name} has no source yet: say with --command what printed its figures")
    for text in (page.read_text(encoding="utf-8") for page in pages()):
        for body in (body for found, body in BLOCK.findall(text) if found == name):
            columns, rows = (printed_tables(body) or [([], [])])[0]
            new = replace(new, columns=columns, rows=rows)
        for body in (body for found, body in PROSE.findall(text) if found == name):
            new = replace(new, figures=figures_of(body))
    new.save(path)


# ---- measuring again


def printed_tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """The Markdown tables in what a command printed: columns and rows."""
    found = re.findall(r"^(\|.*\|) *\n\|[-:| ]+\| *\n((?:\|.*\| *(?:\n|$))*)", text, flags=re.MULTILINE)

    def cells(line: str) -> list[str]:
        return [cell.strip() for cell in line.strip()[1:-1].split("|")]

    return [(cells(head), [cells(line) for line in body.splitlines()]) for head, body in found]


def version_now() -> str:
    return f"{__version__} of {date.today().isoformat()}"


def measure(names: list[str], data: Path, out: Path) -> list[str]:
    """Run the commands of these tables (of none: of all that are stale), each once; returns what is left."""
    results = {path.stem: read_result(path) for path in sorted(RESULTS.glob("*.json"))}
    unknown = sorted(set(names) - set(results))
    if unknown:
        raise SystemExit(f"no such table: {', '.join(unknown)}; there are {', '.join(results)}")
    names = names or [name for name, result in results.items() if is_stale(result)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "DATA": str(data), "OUT": str(out)}
    outputs: dict[str, str] = {}
    left = []
    for name in names:
        result = results[name]
        if result.printed is None:
            left.append(f"{name}: to be copied by hand from: {result.command}")
            continue
        if result.command not in outputs:
            print("$", result.command, flush=True)
            done = subprocess.run(
                ["bash", "-ec", result.command], cwd=REPOSITORY, env=environment,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            outputs[result.command] = done.stdout if done.returncode == 0 else ""
        tables = printed_tables(outputs[result.command])
        if result.printed >= len(tables):
            left.append(f"{name}: its command failed or printed no such table: {result.command}")
            continue
        columns, rows = tables[result.printed]
        weights = {model: weights_now(model) or "none" for model in result.weights}
        now = replace(result, version=version_now(), weights=weights, columns=columns, rows=rows)
        now.save(RESULTS / f"{name}.json")
    return left


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", nargs="*", metavar="NAME")
    parser.add_argument("--adopt", metavar="NAME")
    parser.add_argument("--command", help="with --adopt: what printed the figures")
    parser.add_argument("--printed", type=int, help="with --adopt: which of the tables that it prints")
    parser.add_argument("--model", action="append", default=[], help="with --adopt: whose weights matter")
    parser.add_argument("--data", type=Path, default=os.environ.get("DATA"), help="default: $DATA")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out" / "results")
    options = parser.parse_args(arguments)
    left: list[str] = []
    if options.adopt is not None:
        adopt(options.adopt, options.command, options.model, options.printed)
        options.measure = options.measure if options.printed is None else [options.adopt]
    if options.measure is not None:
        left = measure(options.measure, Path(options.data or ".").resolve(), options.out.resolve())
    if options.check:
        left = problems()
    else:
        for page in differing():
            write_text(page, filled(page.read_text(encoding="utf-8")))
            print(page.relative_to(REPOSITORY))
    print("\n".join(left))
    if left:
        sys.exit(1)


if __name__ == "__main__":
    main()
