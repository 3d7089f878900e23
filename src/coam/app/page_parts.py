"""Parts of the page that several tabs share."""

from __future__ import annotations

import html
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from coam.app.engine import Engine, model_names
from coam.errors import CoamError

_RESULTS = "coam-result-"
Examples = dict[str, Callable[[], tuple[Path, Path]]]  # title -> where the two photos are
ONE_JOB = "one-job"  # all work shares one queue, one job at a time


def photo_pair(gradio: Any, tab: str, labels: tuple[str, str], examples: Examples) -> list[Any]:
    """Two places for photos side by side, called `tab`-photo-1 and -2, and buttons that fill them."""
    with gradio.Row():
        photos = [
            photo_input(gradio, label, f"{tab}-photo-{number}")
            for number, label in enumerate(labels, start=1)
        ]
    example_buttons(gradio, photos, examples)
    return photos


def photo_input(gradio: Any, label: str, name: str) -> Any:
    """A place for one photo. The file goes to `Engine.read` as it is, which opens it with its guards."""
    photo = gradio.Image(
        label=label, type="filepath", image_mode=None, format="png", sources=["upload", "clipboard"],
        height=300, elem_id=name, buttons=["fullscreen"],
    )  # fmt: skip
    photo.preprocess = lambda payload: None if payload is None else payload.path
    return photo


def settings_row(gradio: Any, engine: Engine) -> list[Any]:
    """Model and resolution."""
    names = model_names()
    return [
        gradio.Dropdown(names, value=names[0], label="model"),
        gradio.Dropdown(list(engine.limits.resolutions), value=512, label="resolution (long side, pixels)"),
    ]


def picture_output(gradio: Any, name: str) -> Any:
    """A place for a picture that a tab answers with. WebP is written several times quicker than PNG."""
    return gradio.Image(
        elem_id=name, format="webp", interactive=False, buttons=["download", "fullscreen"], show_label=False,
    )  # fmt: skip


def example_buttons(gradio: Any, photos: list[Any], examples: Examples) -> None:
    """One button for each of the bundled pairs that is in this installation."""
    found = installed(examples)
    if not found:
        return
    with gradio.Row():
        for title, load in found.items():
            button = gradio.Button(f"Example: {title}", size="sm")
            button.click(load, None, photos, api_visibility="private", show_progress="hidden")


def installed(examples: Examples) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Title -> function that reads the two photos; samples that are not installed are left out."""
    from coam.images import load_image

    def reader(find: Callable[[], tuple[Path, Path]]) -> Callable[[], tuple[Any, Any]]:
        return lambda: tuple(load_image(source).rgb for source in find())  # type: ignore[return-value]

    found = {}
    for title, find in examples.items():
        try:
            find()
        except CoamError:
            continue
        found[title] = reader(find)
    return found


def _motorcycle() -> tuple[Path, Path]:
    from coam import samples

    pair = samples.motorcycle()
    return pair.left, pair.right


def _courtyard(name0: str, name1: str) -> tuple[Path, Path]:
    from coam import samples

    yard = samples.courtyard()
    return yard.image(name0), yard.image(name1)


MATCH_EXAMPLES: Examples = {
    "motorcycle": _motorcycle,
    "courtyard, day and night": partial(_courtyard, "day_04", "night_02"),
}
STYLE_EXAMPLES: Examples = {
    "courtyard, day to night": partial(_courtyard, "day_04", "night_02"),
    "courtyard, night to day": partial(_courtyard, "night_03", "day_08"),
}


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


def framed(page: str, height: int = 640) -> str:
    """A self-contained page inside the app: its scripts run, but cannot reach the app around it."""
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{height}px;border:0;border-radius:8px" '
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
