"""The tables of README and docs from docs/results/*.json: one source for every figure.

    python tools/docs_tables.py            # `make docs-tables`: write them into the pages
    python tools/docs_tables.py --check    # say which pages differ from their sources; exit code 1

A page holds a table between `<!-- table: NAME -->` and `<!-- end of table -->`; its source is
docs/results/NAME.json, which a command wrote (the file says which). Under each table stands a line with that
command, the version and the weights; where the weights are not those in the package, the line says so.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coam.models.registry import packaged_weights
from coam.store.atomic import write_json, write_text
from coam.store.documents import read_json

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "docs" / "results"
BLOCK = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", re.DOTALL)


@dataclass(frozen=True)
class Result:
    """A table with all that its figures depend on."""

    command: str  # that wrote it, or who measured it
    version: str  # of coam
    weights: dict[
        str, str
    ]  # model -> SHA-256 of its file, or words where that is not known; empty: none matters
    columns: list[str]
    rows: list[list[str]]

    def save(self, path: Path) -> None:
        """Write the source of a table."""
        write_json(path, vars(self), indent=1)


def read_result(path: Path) -> Result:
    """The source of a table; a row of another length than the columns is an error."""
    content: dict[str, Any] = read_json(path, dict, "tools/docs_tables.py says what it holds")
    result = Result(**{key: content[key] for key in Result.__dataclass_fields__})
    for row in result.rows:
        if len(row) != len(result.columns):
            raise SystemExit(
                f"{path.name}: the row {row[0]!r} has {len(row)} cells, not {len(result.columns)}"
            )
    return result


def markdown(result: Result) -> str:
    """The table and the line below it."""
    lines = ["| " + " | ".join(result.columns) + " |", "|---" * len(result.columns) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in result.rows]
    return "\n".join([*lines, "", stamp(result), ""])


def stamp(result: Result) -> str:
    """Command, version and weights of a table, in one line."""
    parts = [f"coam {result.version}"]
    for model, digest in result.weights.items():
        if not re.fullmatch(r"[0-9a-f]{64}", digest):  # not recorded: what is known stands there in words
            parts.append(f"weights {model} {digest}")
            continue
        now = packaged_weights(model)
        same = now is not None and hashlib.sha256(now.read_bytes()).hexdigest() == digest
        parts.append(f"weights {model} {digest[:8]}{'' if same else ', not those in the package now'}")
    return f"<sub>{result.command}; {'; '.join(parts)}.</sub>"


def pages() -> list[Path]:
    """README and docs, and the model cards."""
    cards = REPOSITORY / "src" / "coam" / "weights"
    return [
        REPOSITORY / "README.md",
        *sorted((REPOSITORY / "docs").glob("*.md")),
        *sorted(cards.glob("*.md")),
    ]


def filled(text: str, results: Path = RESULTS) -> str:
    """A page with every table as its source has it."""

    def table(found: re.Match[str]) -> str:
        body = markdown(read_result(results / f"{found[1]}.json"))
        return f"<!-- table: {found[1]} -->\n{body}<!-- end of table -->"

    return BLOCK.sub(table, text)


def differing() -> list[Path]:
    """Pages whose tables are not those of their sources."""
    return [
        page
        for page in pages()
        if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for page in differing():
        print(page.relative_to(REPOSITORY))
        if not options.check:
            write_text(page, filled(page.read_text(encoding="utf-8")))
    if options.check and differing():
        sys.exit(1)


if __name__ == "__main__":
    main()
