"""Names of files cannot command the terminal, nor the report that is read in one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import coam.cli
from coam.errors import ImageError, printable
from coam.evaluation.reports.text import markdown_name
from coam.images import load_image

CLEAR = "\x1b[2J\x1b]0;owned\x07"


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coam", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_control_characters_are_shown_and_not_obeyed():
    assert printable("a\x1b[2Jb\x07\x9b1m\x7f") == r"a\x1b[2Jb\x07\x9b1m\x7f"
    assert printable("gpj.\u202egpj") == r"gpj.\u202egpj"
    assert printable("two\nlines\tand ä €") == "two\nlines\tand ä €"
    assert printable("\udcff") == r"\udcff"


def test_an_error_is_one_line_whatever_name_it_repeats(tmp_path):
    for name in (
        "two\nlines.jpg",
        "two\rlines.jpg",
        "two\x0blines.jpg",
        "two\u2028lines.jpg",
        f"{CLEAR}.jpg",
    ):
        (tmp_path / name).write_bytes(b"no picture")
        with pytest.raises(ImageError, match="is not a picture that can be read") as error:
            load_image(tmp_path / name)
        assert len(str(error.value).splitlines()) == 1
        assert not set(str(error.value)) & set("\n\r\x0b\x1b\x07")


@pytest.mark.parametrize(
    "arguments",
    [
        ("match", f"{CLEAR}.jpg", "b.jpg"),
        ("match", "a.jpg", "b.jpg", "-o", f"{CLEAR}.xyz"),
        ("sfm", CLEAR, "-o", f"{CLEAR}2"),
        ("localize", CLEAR, CLEAR),
        ("train", f"{CLEAR}.yaml"),
        (CLEAR,),
        ("match", f"--{CLEAR}"),
        ("match", "a", "b", "--resolution", CLEAR),
    ],
)
def test_no_command_prints_an_escape_of_a_name(arguments, tmp_path):
    done = run(
        *arguments, cwd=tmp_path, env={"PYTHONPATH": str(Path(coam.cli.__file__).parents[2]), "PATH": ""}
    )
    assert done.returncode == 2, done.stderr
    assert "\x07" not in done.stdout + done.stderr
    assert "\x1b]" not in done.stdout + done.stderr
    assert "\x1b[2J" not in done.stdout + done.stderr


def test_reports_keep_names_as_names():
    assert markdown_name("a|b\n# c\x1b[2J<img>") == r"a\|b\n# c\\x1b\[2J\<img\>"
    assert markdown_name("v_abstract/1 2.ppm") == "v_abstract/1 2.ppm"


def test_commands_print_in_one_place_only():
    folder = Path(coam.cli.__file__).parent
    for path in folder.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {ast.unparse(call) for call in calls}
        allowed = {"typer.echo"} if path.name == "printing.py" else set()
        assert names & {"typer.echo", "print", "click.echo", "typer.secho"} <= allowed, path.name
