"""Parts of the page that several tabs share."""

from __future__ import annotations

import html
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coam.app.engine import LOOKS, Engine, model_names
from coam.errors import CoamError

_RESULTS = "coam-result-"
ONE_JOB = "one-job"  # all work shares one queue, one job at a time


def photo_input(gradio: Any, label: str, name: str) -> Any:
    """A place for one photo. The file goes to `Engine.read` as it is, which opens it with its guards."""
    photo = gradio.Image(
        label=label, type="filepath", image_mode=None, format="png", sources=["upload", "clipboard"],
        height=300, elem_id=name, buttons=["fullscreen"],
    )  # fmt: skip
    photo.preprocess = lambda payload: None if payload is None else payload.path
    return photo


def settings_row(gradio: Any, engine: Engine, with_matches: bool = False) -> list[Any]:
    """Model, resolution and, where asked, how many matches and how thoroughly they are searched for."""
    names = model_names()
    inputs = [
        gradio.Dropdown(names, value=names[0], label="model"),
        gradio.Dropdown(list(engine.limits.resolutions), value=512, label="resolution (long side, pixels)"),
    ]
    if with_matches:
        inputs.append(
            gradio.Slider(16, engine.limits.most_matches, value=2048, step=16, label="most matches")
        )
        inputs.append(
            gradio.Radio(
                list(LOOKS), value=list(LOOKS)[-1], label="how thoroughly", elem_id="match-looks",
                info="One look is quickest. An aligned look sees both photos from one viewpoint once more. "
                "A search also tries zooms and turns where nothing was found.",
            )
        )  # fmt: skip
    return inputs


def picture_output(gradio: Any, name: str) -> Any:
    """A place for a picture that a tab answers with."""
    return gradio.Image(
        elem_id=name, format="png", interactive=False, buttons=["download", "fullscreen"], show_label=False,
    )  # fmt: skip


def example_buttons(gradio: Any, photos: list[Any]) -> None:
    """One button for each bundled pair that is in this installation."""
    examples = bundled_pairs()
    if not examples:
        return
    with gradio.Row():
        for title, load in examples.items():
            button = gradio.Button(f"Example: {title}", size="sm")
            button.click(load, None, photos, api_visibility="private", show_progress="hidden")


def bundled_pairs() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Title -> function that reads the two photos; samples that are not installed are left out."""
    from coam import samples
    from coam.images import load_image

    def reader(find: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
        return lambda: tuple(load_image(source).rgb for source in find())  # type: ignore[return-value]

    def motorcycle() -> tuple[Any, Any]:
        pair = samples.motorcycle()
        return pair.left, pair.right

    def courtyard() -> tuple[Any, Any]:
        yard = samples.courtyard()
        return yard.image("day_04"), yard.image("night_02")

    found = {}
    for title, find in (("motorcycle", motorcycle), ("courtyard, day and night", courtyard)):
        try:
            find()
        except CoamError:
            continue
        found[title] = reader(find)
    return found


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


class told:
    """Turns a `CoamError` into the message that the visitor reads; other errors stay unspecific for them."""

    def __init__(self, gradio: Any) -> None:
        self._gradio = gradio

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, CoamError):
            words = html.escape(str(error))
            # Stays until it is closed: a message that vanishes while one reads it helps nobody.
            raise self._gradio.Error(words, duration=None, title="", print_exception=False) from error
