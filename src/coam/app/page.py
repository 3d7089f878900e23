"""What is on the page besides gradio's own: style, script, pages inside the page, results to download."""

from __future__ import annotations

import html
import shutil
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

from coam.errors import CoamError

_RESULTS = "coam-result-"


def style_and_script() -> tuple[str, str]:
    """The page's own CSS, and its script as a head element."""
    folder = resources.files("coam.app").joinpath("static")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("app.css", "app.js"))
    return style, f"<script>\n{script}</script>"


def framed(page: str, title: str, height: str = "clamp(400px, 62vh, 660px)") -> str:
    """A self-contained page inside the app: its scripts run, but cannot reach the app around it."""
    return (
        f'<iframe sandbox="allow-scripts" title="{html.escape(title, quote=True)}" '
        f'style="width:100%;height:{height};border:0;border-radius:8px;display:block" '
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )


def refusal(gradio: Any, error: CoamError) -> str:
    """Show the visitor what is wrong; gives the same words for the tab's status line.

    Other errors than ours stay unspecific for visitors: gradio only says that there was one.
    """
    words = html.escape(str(error))
    # Stays until it is closed: a message that vanishes while one reads it helps nobody.
    gradio.Warning(words, duration=None, title="This did not work")
    return f"⚠ {words}"


def result_folder(keep_seconds: float) -> Path:
    """A new folder for results; those of earlier jobs that are older than `keep_seconds` are deleted.

    The page's own copies of what it shows are in gradio's cache, which has the same age limit.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{_RESULTS}*"):
        try:
            if time.time() - old.stat().st_mtime > keep_seconds:
                shutil.rmtree(old, ignore_errors=True)
        except FileNotFoundError:  # another job was quicker
            continue
    return Path(tempfile.mkdtemp(prefix=_RESULTS))
