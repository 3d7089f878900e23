"""The two commands as a user types them: one clear line each for what is wrong."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner


@pytest.fixture
def run(monkeypatch, matcher):
    """Runs a command with the toy matcher in place of the network."""
    from coam.cli import build_app

    monkeypatch.setattr("coam.cli.sfm.load_for_sfm", lambda *_: matcher)

    def call(*arguments):
        return CliRunner().invoke(build_app(), [str(argument) for argument in arguments])

    return call


def last_line(result):
    return (result.stderr or result.output).strip().splitlines()[-1]


def test_sfm_then_localize(run, built, photos, queries, tmp_path):
    result = run("sfm", photos, "-o", tmp_path / "model", "--hloc", tmp_path / "hloc")
    assert result.exit_code == 0, result.output
    assert "5 of 5 photos registered" in result.output
    assert len((tmp_path / "hloc" / "pairs.txt").read_text().splitlines()) == 10
    result = run("localize", tmp_path / "model", queries, "-o", tmp_path / "p.txt", "-o", tmp_path / "p.json")
    assert result.exit_code == 0, result.output
    assert "2 of 3 photos located" in result.output
    assert "broken.jpg: not located" in result.output
    assert len((tmp_path / "p.txt").read_text().splitlines()) == 2
    assert len(json.loads((tmp_path / "p.json").read_text())) == 3


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sfm", "{tmp}/none", "-o", "{tmp}/m"], "no such folder; give a folder of photos"),
        (["sfm", "{tmp}", "-o", "{tmp}/m"], "holds no photos"),
        (["sfm", "{tmp}", "-o", "{tmp}/m", "--tracks", "x"], "--tracks x: choose quantised, merged, refined"),
        (["localize", "{tmp}", "{tmp}"], "holds no finished model"),
        (["localize", "{tmp}", "{tmp}", "-o", "{tmp}/x.csv"], "write poses to a .txt or .json file"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(run, tmp_path, arguments, line):
    result = run(*[argument.format(tmp=tmp_path) for argument in arguments])
    assert result.exit_code == 2
    assert line in last_line(result)
    assert "Traceback" not in result.output
