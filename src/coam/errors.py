"""What went wrong and what to do about it.

Every error a user can cause is a `CoamError` whose message is one line that says what to do next.
The command line prints that line and exits with code 2; it never shows a traceback for one of these.
"""

from __future__ import annotations

import json
import re
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse


class CoamError(Exception):
    """Base of every error that a user can cause and can mend; one line, whatever names it repeats."""

    def __str__(self) -> str:
        return printable(super().__str__()).replace("\n", "\\n")


class ImageError(CoamError):
    """A picture cannot be read or used."""


class WeightsError(CoamError):
    """A weights file is missing, damaged, or does not fit the model."""


class ConfigError(CoamError):
    """An option has a name or value that does not exist."""


class DataError(CoamError):
    """A data set, model folder or file on disk is missing, incomplete or damaged."""


class MissingExtraError(CoamError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: {install_command(extra)}")


class UntrainedWarning(UserWarning):
    """A model has no trained weights, so its answers mean nothing."""


def install_command(extra: str) -> str:
    """The line that installs an extra, from where coam itself was installed: a checkout, or an index."""
    place, editable = _source_folder()
    if place is None:
        return f"pip install 'coam[{extra}]'"
    folder = "." if place == Path.cwd() else str(place)
    return f"pip install {'-e ' if editable else ''}'{folder}[{extra}]'"


def _source_folder() -> tuple[Path | None, bool]:
    """The checkout that coam runs in (editable) or was installed from; None where it came from an index."""
    running = Path(__file__).resolve().parents[2]
    if (running / "pyproject.toml").is_file() and (running / "src" / "coam").is_dir():
        return running, True
    try:
        origin = json.loads(metadata.distribution("coam").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None, False
    address = urlparse(origin.get("url", ""))
    folder = Path(unquote(address.path))
    is_there = address.scheme == "file" and (folder / "pyproject.toml").is_file()
    return (folder, False) if is_there else (None, False)


def import_extra(module: str, extra: str) -> Any:
    """An optional package's module; where it is missing, the error names the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.partition(".")[0], extra) from error


# C0 and C1 control characters but for line ends and tabs, and those that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text` as any terminal or file can show it, and nothing but show it.

    Names of files may be any bytes, also those with which a terminal is told to clear itself or to lie.
    """
    escaped = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")
