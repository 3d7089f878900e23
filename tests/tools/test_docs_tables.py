"""Tables of the pages are those of their sources; tests that docs/paper.md names exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools.docs_tables import BLOCK, RESULTS, Result, differing, filled, markdown, pages, read_result, stamp

from coam.models.registry import load_model, packaged_weights
from support import REPOSITORY


def test_every_page_has_the_tables_of_its_sources() -> None:
    assert [page.name for page in differing()] == []  # make docs-tables


def test_every_source_is_shown_and_says_where_it_is_from() -> None:
    shown = {name for page in pages() for name, _ in BLOCK.findall(page.read_text(encoding="utf-8"))}
    sources = {path.stem for path in RESULTS.glob("*.json")}
    assert sources == shown
    for name in sources:
        result = read_result(RESULTS / f"{name}.json")
        assert len(result.command) > 10
        assert result.version
        assert str(REPOSITORY) not in (RESULTS / f"{name}.json").read_text()


def example(**changes: object) -> Result:
    fields = {"command": "coam x", "version": "1", "weights": {}, "columns": ["a", "b"], "rows": [["1", "2"]]}
    return Result(**(fields | changes))  # type: ignore[arg-type]


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    example().save(tmp_path / "toy.json")
    page = "text\n<!-- table: toy -->\n<!-- end of table -->\nmore\n"
    full = filled(page, tmp_path)
    assert "| a | b |\n|---|---|\n| 1 | 2 |\n\n<sub>coam x; coam 1.</sub>\n" in full
    assert filled(full, tmp_path) == full
    assert filled(full.replace("| 2 |", "| 3 |"), tmp_path) == full  # the source wins
    content = json.loads((tmp_path / "toy.json").read_text())
    (tmp_path / "toy.json").write_text(json.dumps(content | {"rows": [["1", "9"]]}))
    assert filled(full, tmp_path) != full
    (tmp_path / "toy.json").write_text(json.dumps(content | {"rows": [["1"]]}))
    with pytest.raises(SystemExit, match="has 1 cells, not 2"):
        filled(full, tmp_path)


def test_figures_of_other_weights_are_marked() -> None:
    digest = load_model("capsnet-cf").sha256
    now = stamp(example(weights={"capsnet-cf": digest}))
    assert "not those in the package now" not in now
    assert digest[:8] in now
    other = stamp(example(weights={"capsnet-cf": "0" * 64}))
    assert "weights capsnet-cf 00000000, not those in the package now" in other
    words = stamp(example(weights={"capsnet-cf": "of an earlier run"}))
    assert "weights capsnet-cf of an earlier run." in words
    assert packaged_weights("capsnet-cf") is not None
    assert markdown(example()).endswith("</sub>\n")


def test_tests_that_the_page_of_the_paper_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (REPOSITORY / "docs" / "paper.md").read_text())
    assert len(named) >= 25
    for file, test in named:
        assert f"def {test}(" in (REPOSITORY / file).read_text(), f"{file}::{test}"


def test_the_conformance_table_has_nothing_missing() -> None:
    text = (REPOSITORY / "docs" / "paper.md").read_text()
    table = text[text.index("## Conformance") : text.index("Nothing is missing")]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    assert all("::" in row and "missing" not in row for row in rows)
