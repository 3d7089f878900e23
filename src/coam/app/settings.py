"""Gradio, told to stay at home before it is imported."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from coam.errors import MissingExtraError

_QUIET = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "GRADIO_SHARE": "False",
    "GRADIO_RUN_HISTORY": "False",  # its routes ask huggingface.co
    "DO_NOT_TRACK": "1",
}


def import_gradio() -> Any:
    """The gradio module: no analytics, no version check, no request to any other host."""
    os.environ.update(_QUIET)
    try:
        return import_module("gradio")
    except ImportError as error:
        raise MissingExtraError("gradio", "app") from error
