"""What commands print, in one place: nothing that a file's name holds can command the terminal."""

from __future__ import annotations

import typer

from coam.errors import printable


def say(text: str, err: bool = False) -> None:
    """Print `text` (err: to stderr), control characters as \\x1b and the like."""
    typer.echo(printable(text), err=err)
