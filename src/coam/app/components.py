"""Gradio, and the components and events that several tabs share."""

from __future__ import annotations

import html
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coam.app.engine import Engine, Upload, model_names
from coam.errors import CoamError, DataError, import_extra

if TYPE_CHECKING:
    from coam.matcher import Matcher, PreparedImage

# Read when gradio is imported: it sends nothing to any other host.
_OFFLINE = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "GRADIO_SHARE": "False",
    "GRADIO_RUN_HISTORY": "False",  # its routes ask huggingface.co
    "DO_NOT_TRACK": "1",
}
_RESULTS = "coam-result-"
Examples = dict[str, Callable[[], tuple[Path, Path]]]  # title -> where the two photos are
JOB_EVENT = {"concurrency_id": "one-job", "api_visibility": "private"}  # one queue, one job at a time


def import_gradio() -> Any:
    """The gradio module: no analytics, no version check, no request to any other host."""
    os.environ.update(_OFFLINE)
    return import_extra("gradio", "app")


def upload_folder() -> Path:
    """Where gradio keeps uploads, and its copies of examples."""
    from gradio.utils import get_upload_folder

    return Path(get_upload_folder())


def photo_pair(gradio: Any, tab: str, labels: tuple[str, str], examples: Examples) -> list[Any]:
    """Two places for photos side by side, called `tab`-photo-1 and -2, and buttons that fill them."""
    photos = []
    with gradio.Row():
        for number, label in enumerate(labels, start=1):
            photo = gradio.Image(
                label=label, type="filepath", image_mode=None, format="png", sources=["upload", "clipboard"],
                height=300, elem_id=f"{tab}-photo-{number}", buttons=["fullscreen"],
            )  # fmt: skip
            # The path may be anything: `Engine.read` opens uploads only.
            photo.preprocess = lambda payload: None if payload is None else payload.path
            photos.append(photo)
    with gradio.Row():
        for title, find in examples.items():
            if is_installed(find):
                button = gradio.Button(f"Example: {title}", size="sm")
                read = _reader(find)
                button.click(read, None, photos, api_visibility="private", show_progress="hidden")
    return photos


def _reader(find: Callable[[], tuple[Path, Path]]) -> Callable[[], tuple[Any, ...]]:
    from coam.images import load_image

    return lambda: tuple(load_image(path).rgb for path in find())


def is_installed(find: Callable[[], object]) -> bool:
    """Whether the sample that `find` finds is part of this installation."""
    try:
        find()
    except CoamError:
        return False
    return True


def settings_row(gradio: Any, engine: Engine) -> list[Any]:
    """Model and resolution."""
    names = model_names()
    return [
        gradio.Dropdown(names, value=names[0], label="model"),
        gradio.Dropdown(list(engine.limits.resolutions), value=512, label="resolution (long side, pixels)"),
    ]


def job_controls(gradio: Any, tab: str, label: str) -> tuple[Any, Any, Any]:
    """Buttons that start and cancel the job of a tab, and its status line: `tab`-start, -cancel, -status."""
    with gradio.Row():
        start = gradio.Button(label, variant="primary", elem_id=f"{tab}-start")
        stop = gradio.Button("Cancel", elem_id=f"{tab}-cancel")
    return start, stop, gradio.Markdown(elem_id=f"{tab}-status")


def prepare_pair(
    engine: Engine, paths: tuple[str, str], labels: tuple[str, str], load: Callable[[], Matcher]
) -> Generator[Any, None, tuple[Matcher, list[Upload], list[PreparedImage], float]]:
    """The first steps of a job on two photos: says what it does; the matcher, the photos, when it began."""
    photos = [engine.read(path, label) for path, label in zip(paths, labels, strict=True)]
    yield "loading the model …", None, None, None
    matcher, began, prepared = load(), time.perf_counter(), []
    for photo, label in zip(photos, labels, strict=True):
        yield f"looking at {label} …", None, None, None
        prepared.append(engine.prepare(matcher, photo))
    return matcher, photos, prepared, began


def with_deadline(job: Callable[..., Generator[Any, Any, Any]], seconds: float) -> Callable[..., Any]:
    """The job, which gets a `DataError` at its first step after so many seconds, and may answer to it.

    A step that runs cannot be ended from outside; sizes and numbers are bounded so that none takes long.
    """

    @wraps(job)
    def limited(*arguments: Any) -> Generator[Any, None, None]:
        ends = time.monotonic() + seconds
        with closing(job(*arguments)) as steps:
            for step in steps:
                yield step
                if time.monotonic() > ends:
                    yield steps.throw(DataError(f"this took more than {seconds:.0f} s, so it was ended"))
                    return

    return limited


def connect_job(
    controls: tuple[Any, Any, Any],
    job: Callable[..., Generator[Any, Any, Any]],
    inputs: list[Any],
    outputs: list[Any],
    seconds: float,
    cancel: Callable[..., str] = lambda: "cancelled",
) -> None:
    """Start `job` on a click; `outputs` come after the status line. Cancelling shows what `cancel` returns.

    A job is a generator: one that is cancelled, or has taken so many seconds, ends at its next step.
    """
    start, stop, status = controls
    event = start.click(
        with_deadline(job, seconds), inputs, [status, *outputs], show_progress_on=[status], **JOB_EVENT
    )
    stop.click(cancel, None, status, cancels=[event], queue=False, api_visibility="private")


def picture_output(gradio: Any, name: str) -> Any:
    """A place for a picture that a tab answers with. WebP is written several times quicker than PNG."""
    return gradio.Image(
        elem_id=name, format="webp", interactive=False, buttons=["download", "fullscreen"], show_label=False,
    )  # fmt: skip


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
