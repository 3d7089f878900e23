"""What went wrong and what to do about it.

Every error a user can cause is a `CoamError` whose message is one line that says what to do next.
The command line prints that line and exits with code 2; it never shows a traceback for one of these.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class CoamError(Exception):
    """Base of every error that a user can cause and can mend."""


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
        super().__init__(f"{package} is not installed; install it with: pip install 'coam[{extra}]'")


def import_extra(module: str, extra: str) -> Any:
    """An optional package's module; where it is missing, the error names the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.partition(".")[0], extra) from error
