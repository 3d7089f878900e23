"""Gradio, and the parts that several tabs have: photos of the pair, settings, buttons, downloads."""

from __future__ import annotations

import os
from abc import ABCMeta
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from coam.app.engine import LOOKS, PHOTO_LABELS, Engine, model_names
from coam.app.jobs import PRIVATE
from coam.app.page import refusal, result_folder
from coam.errors import CoamError, import_extra
from coam.images import RGB

# Read when gradio is imported: it sends nothing to any other host.
_OFFLINE = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "GRADIO_SHARE": "False",
    "GRADIO_RUN_HISTORY": "False",  # its routes ask huggingface.co
    "DO_NOT_TRACK": "1",
}
Examples = dict[str, Callable[[], tuple[RGB, RGB]]]  # title -> two photos


def import_gradio() -> Any:
    """The gradio module: no analytics, no version check, no request to any other host."""
    os.environ.update(_OFFLINE)
    return import_extra("gradio", "app")


def upload_folder() -> Path:
    """Where gradio keeps uploads, and its copies of what is shown."""
    from gradio.utils import get_upload_folder

    return Path(get_upload_folder())


def photo_input(gradio: Any, name: str, label: str, height: int, sources: list[str]) -> Any:
    """A place for a photo, called `name`; its value is a path that only `Engine.read` opens."""
    return _unopened_image(gradio.Image)(
        label=label, type="filepath", image_mode=None, format="png", sources=sources, height=height,
        elem_id=name, buttons=["fullscreen"], alt_text=label,
    )  # fmt: skip


@cache
def _unopened_image(base: Any) -> Any:
    """gradio's Image that opens nothing: the path may be anything, and `Engine.read` opens uploads only.

    A class, because gradio makes a visitor's components anew when it updates them, and what was set on one of
    them is lost. By no class statement, for which gradio's metaclass would write a stub file beside this one.
    """

    def preprocess(self: Any, payload: Any) -> str | None:
        return None if payload is None else payload.path

    return ABCMeta.__new__(
        type(base), "Image", (base,), {"preprocess": preprocess, "__module__": base.__module__}
    )


def show_previews(gradio: Any, engine: Engine, photo: Any, label: str, also: list[Any]) -> None:
    """Show each new photo as it is meant, upright and whatever its format: the server makes a preview.

    The preview stands for the upload wherever the engine reads it; it is shown in `also` too.
    """

    def preview(path: str | None) -> Any:
        shown = None
        if path is not None:
            try:
                shown = engine.preview(path, label, result_folder(engine.limits.file_seconds))
            except CoamError as error:
                refusal(gradio, error)
        first = gradio.skip() if shown is None else shown
        return (first, *(shown for _ in also)) if also else first

    # In a queue of their own: what is not queued cannot show a message.
    previews = {"concurrency_id": "previews", "concurrency_limit": 2}
    photo.input(preview, photo, [photo, *also], show_progress="hidden", **previews, **PRIVATE)


def examples_row(gradio: Any, engine: Engine, examples: Examples, photos: list[Any], also: list[Any]) -> None:
    """Buttons that fill the places of both photos, and one that swaps them; `also` shows photo 1."""

    def swap(path0: str | None, path1: str | None) -> tuple[Any, ...]:
        # Previews made anew: a path from the page is read by the engine or not at all.
        folders = [result_folder(engine.limits.file_seconds) for _ in photos]
        try:
            second, first = (
                None if path is None else engine.preview(path, label, folder)
                for path, label, folder in zip((path0, path1), PHOTO_LABELS, folders, strict=True)
            )
        except CoamError as error:
            refusal(gradio, error)
            return tuple(gradio.skip() for _ in (*photos, *also))
        return first, second, *(first for _ in also)

    def filled(read: Callable[[], tuple[RGB, RGB]]) -> Callable[[], tuple[Any, ...]]:
        def fill() -> tuple[Any, ...]:
            pair = read()
            return (*pair, *(pair[0] for _ in also))

        return fill

    with gradio.Row(elem_id="examples", equal_height=True):
        for title, read in examples.items():
            if is_installed(read):
                button = gradio.Button(f"Example: {title}", size="sm")
                button.click(filled(read), None, [*photos, *also], show_progress="hidden", **PRIVATE)
        swapped = gradio.Button("⇄ Swap photos", size="sm", elem_id="swap")
        swapped.click(swap, photos, [*photos, *also], show_progress="hidden", **PRIVATE)


def is_installed(find: Callable[[], object]) -> bool:
    """Whether the sample that `find` finds is part of this installation."""
    try:
        find()
    except CoamError:
        return False
    return True


def settings(gradio: Any, engine: Engine) -> list[Any]:
    """Model, resolution, number of matches, and how thoroughly: as on the command line."""
    names, limits = model_names(), engine.limits
    with gradio.Row():
        chosen = [
            gradio.Dropdown(names, value=names[0], label="model", info="The network; the first is the best."),
            gradio.Dropdown(
                list(limits.resolutions), value=800, label="resolution (long side, pixels)",
                info="Photos are shrunk to this. More finds finer matches and takes longer.",
            ),
            gradio.Slider(
                16, limits.max_matches, value=2048, step=16, label="most matches",
                info="The best so many are kept.",
            ),
            gradio.Radio(
                list(LOOKS), value=list(LOOKS)[-1], label="how thoroughly",
                info="One look is quickest. An aligned look sees both photos once more from one viewpoint. A "
                "search also tries zooms and turns where nothing was found.",
            ),
        ]  # fmt: skip
    return chosen


def job_controls(gradio: Any, tab: str, label: str) -> tuple[Any, Any, Any]:
    """Buttons that start and cancel the job of a tab, and its status line: `tab`-start, -cancel, -status."""
    with gradio.Row():
        start = gradio.Button(label, variant="primary", elem_id=f"{tab}-start", scale=3)
        stop = gradio.Button("Cancel", elem_id=f"{tab}-cancel", scale=1)
    return start, stop, gradio.Markdown(elem_id=f"{tab}-status", elem_classes="status")


def picture_output(gradio: Any, name: str, described: str) -> Any:
    """A place for a picture that a tab answers with. WebP is written several times quicker than PNG."""
    return gradio.Image(
        elem_id=name, format="webp", interactive=False, buttons=["download", "fullscreen"], show_label=False,
        alt_text=described,
    )  # fmt: skip


def downloads(gradio: Any, tab: str, label: str = "download") -> Any:
    """A list of files to download, called `tab`-files."""
    return gradio.File(label=label, file_count="multiple", elem_id=f"{tab}-files", interactive=False)


def _motorcycle() -> tuple[RGB, RGB]:
    from coam import samples

    pair = samples.motorcycle()
    return _read(pair.left, pair.right)


def _motorcycle_turned() -> tuple[RGB, RGB]:
    """The right photo on its side, and half of it: what the search for turns and zooms is for."""
    left, right = _motorcycle()
    height, width = right.shape[:2]
    cut = right[height // 6 : -height // 6, width // 6 : -width // 6]
    return left, np.ascontiguousarray(np.rot90(cut))


def _courtyard(name0: str, name1: str) -> tuple[RGB, RGB]:
    from coam import samples

    yard = samples.courtyard()
    return _read(yard.image(name0), yard.image(name1))


def _town() -> tuple[RGB, RGB]:
    from coam import samples

    return _read(*samples.town())


def _box() -> tuple[RGB, RGB]:
    from coam import samples

    return _read(*samples.box())


def _read(path0: Path, path1: Path) -> tuple[RGB, RGB]:
    from coam.images import load_image

    return load_image(path0).rgb, load_image(path1).rgb


EXAMPLES: Examples = {
    "motorcycle": _motorcycle,
    "motorcycle, turned and cut": _motorcycle_turned,
    "a town from a plane": _town,
    "a box in a heap": _box,
    "courtyard, day and night": partial(_courtyard, "day_04", "night_02"),
    "courtyard, night and day": partial(_courtyard, "night_03", "day_08"),
}
