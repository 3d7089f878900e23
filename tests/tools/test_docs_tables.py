"""Figures of the pages are those of their sources; tests that docs/paper.md names exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.docs_tables import (
    BLOCK,
    PROSE,
    RESULTS,
    Result,
    figures_of,
    filled,
    is_stale,
    markdown,
    misquoted,
    pages,
    printed_tables,
    problems,
    read_result,
    stamp,
    unsourced,
)

from coam.models.registry import load_model, packaged_weights
from support import REPOSITORY
from tools import docs_tables

SAVED = re.compile(r"python (tools/\w+\.py) table (docs/\w+)")  # commands that need no data


def test_every_figure_has_its_source() -> None:
    assert problems() == []  # make docs-tables; python tools/docs_tables.py --help


def test_every_source_is_shown_once_and_says_where_it_is_from() -> None:
    texts = [page.read_text(encoding="utf-8") for page in pages()]
    shown = [name for text in texts for kind in (BLOCK, PROSE) for name, _ in kind.findall(text)]
    assert sorted(shown) == sorted(path.stem for path in RESULTS.glob("*.json"))
    for name in shown:
        command = read_result(RESULTS / f"{name}.json").command
        assert len(command) >= 10
        assert "not kept" not in command, name
        assert "by hand" not in command or name == "public", name  # the maintainers' own


def test_saved_figures_give_the_tables_of_the_pages() -> None:
    named = {path.stem: read_result(path) for path in RESULTS.glob("*.json")}
    saved = {name: SAVED.fullmatch(result.command) for name, result in named.items()}
    commands = {found.groups() for found in saved.values() if found}
    printed = {
        command: printed_tables(
            subprocess.run(
                [sys.executable, command[0], "table", command[1]],
                cwd=REPOSITORY, capture_output=True, text=True, check=True,
            ).stdout
        )
        for command in commands
    }  # fmt: skip
    assert len([found for found in saved.values() if found]) >= 3
    for name, found in saved.items():
        if found:
            columns, rows = printed[found.groups()][named[name].printed or 0]
            assert (columns, rows) == (named[name].columns, named[name].rows), name


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


def test_a_changed_figure_of_a_text_is_noticed(tmp_path: Path) -> None:
    example(columns=[], rows=[], figures=["12", "2,048", ".5", "0.97"]).save(tmp_path / "toy.json")
    text = "In 12 of 2,048 pairs (`k = 3`, [here](a_7.md)) .5 of 0.97."
    page = f"<!-- figures: toy -->\n{text}\n<!-- end of figures -->\n"
    full = filled(page, tmp_path)
    assert full.count("<sub>coam x; coam 1.</sub>") == 1
    assert filled(full, tmp_path) == full
    assert misquoted(full, tmp_path) == []
    assert misquoted(full.replace("0.97", "0.98"), tmp_path) == ["toy"]
    assert misquoted(full.replace("12 of ", ""), tmp_path) == ["toy"]
    assert figures_of("x2 of v_1\n\n<sub>33 runs.</sub>\n") == []


@pytest.mark.parametrize(
    ("line", "measured"),
    [
        ("it reaches .97 at 3 px", True),
        ("| a | 12.5 |", True),
        ("found in 95 % of the pairs", True),
        ("takes 3 ms", True),
        ("uses 2.3 GB", True),
        ("below `0.5`, Python 3.10 and later", False),
        ("section 4.2.1 of [x](a.0.1.md), 2,048 matches, Apache-2.0", False),
    ],
)
def test_what_looks_measured_needs_a_source(line: str, measured: bool) -> None:
    assert bool(unsourced(line)) is measured
    block = f"<!-- figures: x -->\n{line}\n<!-- end of figures -->\n"
    assert unsourced(block) == []


def test_tables_are_read_as_they_are_printed() -> None:
    printed = "a | b\n\n| c | d | \n|---|:--|\n| 1 | `x` |\n|  | 2 | \n\ntext\n| e |\n|---|\n"
    assert printed_tables(printed) == [(["c", "d"], [["1", "`x`"], ["", "2"]]), (["e"], [])]


def test_figures_of_other_weights_are_marked() -> None:
    digest = load_model("capsnet-cf").sha256
    now = example(weights={"capsnet-cf": digest})
    assert "not those in the package now" not in stamp(now)
    assert digest[:8] in stamp(now)
    other = example(weights={"capsnet-cf": "0" * 64})
    assert "weights capsnet-cf 00000000, not those in the package now" in stamp(other)
    words = example(weights={"capsnet-cf": "of an earlier run"})
    assert "weights capsnet-cf of an earlier run." in stamp(words)
    assert [is_stale(result) for result in (now, other, words, example())] == [False, True, True, False]
    assert packaged_weights("capsnet-cf") is not None
    assert markdown(example()).endswith("</sub>\n")


def test_tables_of_older_weights_are_made_again_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(docs_tables, "differing", list)
    once = (
        'echo ran >> $OUT/log; printf "| a | b |\\n|---|---|\\n| 3 | 4 |\\n\\n| c |\\n|---|\\n| $DATA |\\n"'
    )
    old = {"capsnet-cf": "0" * 64}
    example(command=once, weights=old, printed=0).save(tmp_path / "first.json")
    example(command=once, weights=old, printed=1).save(tmp_path / "second.json")
    example(command="by hand", weights=old).save(tmp_path / "third.json")
    example(command="false", printed=0).save(tmp_path / "current.json")
    with pytest.raises(SystemExit) as left:
        docs_tables.main(["--measure", "--data", str(tmp_path), "--out", str(tmp_path)])
    assert left.value.code == 1
    assert "third: to be copied by hand from: by hand" in capsys.readouterr().out
    first, second = (read_result(tmp_path / f"{name}.json") for name in ("first", "second"))
    assert (first.columns, first.rows) == (["a", "b"], [["3", "4"]])
    assert second.rows == [[str(tmp_path)]]
    assert first.weights == {"capsnet-cf": load_model("capsnet-cf").sha256}
    assert (tmp_path / "log").read_text() == "ran\n"  # one command, two tables
    assert read_result(tmp_path / "current.json").rows == [["1", "2"]]
    with pytest.raises(SystemExit, match="no such table: fourth"):
        docs_tables.main(["--measure", "fourth", "--data", str(tmp_path)])


def test_a_new_block_gets_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_tables, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    monkeypatch.setattr(docs_tables, "REPOSITORY", tmp_path)
    monkeypatch.setattr(docs_tables, "pages", lambda: [page])
    page.write_text(
        "<!-- table: old -->\n| a | b |\n|---|---|\n| 1 | .5 |\n<!-- end of table -->\n\n"
        "<!-- table: new -->\n<!-- end of table -->\n\n"
        "<!-- figures: text -->\nin 3 of 4\n<!-- end of figures -->\n"
    )
    for name in ("old", "new", "text"):
        Result("by hand", "1", {}).save(tmp_path / f"{name}.json")
    docs_tables.main(["--adopt", "old", "--command", "coam x", "--model", "capsnet-cf"])
    printing = "printf '| c |\\n|---|\\n| 7 |\\n'"
    docs_tables.main(["--adopt", "new", "--command", printing, "--printed", "0"])
    docs_tables.main(["--adopt", "text"])
    old, new, text = (read_result(tmp_path / f"{name}.json") for name in ("old", "new", "text"))
    assert (old.command, old.rows, list(old.weights)) == ("coam x", [["1", ".5"]], ["capsnet-cf"])
    assert (new.columns, new.rows, new.printed) == (["c"], [["7"]], 0)
    assert (text.command, text.figures) == ("by hand", ["3", "4"])
    assert problems() == []
    with pytest.raises(SystemExit, match="say with --command"):
        docs_tables.main(["--adopt", "fourth"])


@pytest.mark.parametrize(("page", "least"), [("paper.md", 25), ("reliability.md", 50)])
def test_tests_that_a_page_names_exist(page: str, least: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (REPOSITORY / "docs" / page).read_text())
    assert len(named) >= least
    for file, test in named:
        assert f"def {test}(" in (REPOSITORY / file).read_text(), f"{file}::{test}"


def test_the_conformance_table_has_nothing_missing() -> None:
    text = (REPOSITORY / "docs" / "paper.md").read_text()
    table = text[text.index("## Conformance") : text.index("Nothing is missing")]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    assert all("::" in row and "missing" not in row for row in rows)
