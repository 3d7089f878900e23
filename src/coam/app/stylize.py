"""The tab Stylize: the view of one photo in the light and colours of another photo of the place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from coam.app.engine import Engine
from coam.app.page_parts import (
    ONE_JOB,
    STYLE_EXAMPLES,
    photo_pair,
    picture_output,
    refusal,
    result_folder,
    settings_row,
)
from coam.errors import CoamError, DataError

if TYPE_CHECKING:
    from coam.stylization import Stylized


def stylize_tab(gradio: Any, engine: Engine) -> None:
    """Add the tab's parts to the page that is being built."""
    gradio.Markdown(
        "**VIEW** keeps its view and takes the light and colours of **STYLE**. "
        "Both photos must show the same place."
    )
    labels = ("VIEW: what is shown", "STYLE: its light and colours")
    photos = photo_pair(gradio, "stylize", labels, STYLE_EXAMPLES)
    with gradio.Row():
        settings = settings_row(gradio, engine)
        strength = gradio.Slider(0, 1, value=1, step=0.05, label="strength", elem_id="stylize-strength")
        force = gradio.Checkbox(
            label="stylize all the same", info="even if the photos seem to show different places",
            elem_id="stylize-force",
        )  # fmt: skip
    with gradio.Row():
        start = gradio.Button("Stylize", variant="primary", elem_id="stylize-start")
        stop = gradio.Button("Cancel", elem_id="stylize-cancel")
    status = gradio.Markdown(elem_id="stylize-status")
    result = picture_output(gradio, "stylize-picture")
    with gradio.Accordion("How it was made: sampled colours and confidence", open=True):
        panel = picture_output(gradio, "stylize-panel")
    files = gradio.File(label="download", file_count="multiple", elem_id="stylize-files", interactive=False)

    def run(
        view: str, style: str, model: str, resolution: int, strength: float, force: bool
    ) -> Iterator[Any]:
        # A generator: between its steps a cancelled job ends.
        import time

        try:
            photo0, photo1 = engine.read(view, "VIEW"), engine.read(style, "STYLE")
            yield "loading the model …", None, None, None
            matcher = engine.matcher(model, int(resolution))
            began = time.perf_counter()
            yield "looking at VIEW …", None, None, None
            engine.prepare(matcher, photo0)
            yield "looking at STYLE …", None, None, None
            engine.prepare(matcher, photo1)
            yield "stylizing …", None, None, None
            made = stylize_or_refuse(engine, matcher, (photo0, photo1), float(strength), bool(force))
            words = f"{words_about(made)}  ·  {time.perf_counter() - began:.1f} s"
            yield words, *show(made, result_folder(engine.limits.keep_files_seconds))
        except CoamError as error:
            yield refusal(gradio, error), None, None, None

    events = {"concurrency_id": ONE_JOB, "api_visibility": "private", "show_progress_on": [status]}
    outputs = [status, result, panel, files]
    job = start.click(run, [*photos, *settings, strength, force], outputs, **events)
    stop.click(lambda: "cancelled", None, status, cancels=[job], queue=False, api_visibility="private")


def stylize_or_refuse(
    engine: Engine, matcher: Any, photos: tuple[Any, Any], strength: float, force: bool
) -> Stylized:
    """The stylized picture; a refusal tells what to do on the page."""
    from coam.stylization import NoOverlapError
    from coam.stylization.apply import LEAST_OVERLAP

    try:
        return engine.stylize(matcher, *photos, strength=strength, force=force)
    except NoOverlapError as error:
        raise DataError(
            f"VIEW and STYLE do not seem to show the same place (pair score {error.overlap:.2f}, wanted"
            f" {LEAST_OVERLAP}); choose other photos, or tick 'stylize all the same'"
        ) from error


def words_about(made: Stylized) -> str:
    """One line of Markdown about the result."""
    from coam.stylization.apply import LEAST_OVERLAP

    words = [f"pair score **{made.overlap:.2f}**", f"mean confidence **{made.confidence.mean():.2f}**"]
    if made.overlap < LEAST_OVERLAP:
        words.append("⚠ the photos probably show different places")
    return "  ·  ".join(words)


def show(made: Stylized, folder: Path) -> tuple[Image.Image, Image.Image, list[str]]:
    """The picture, the panel of what it was made of, and both as files in `folder`."""
    from coam.stylization.panel import draw_panel

    pictures = {"stylized": Image.fromarray(made.picture), "panel": draw_panel(made)}
    paths = [folder / f"{name}.png" for name in pictures]
    for path, picture in zip(paths, pictures.values(), strict=True):
        picture.save(path)
    return pictures["stylized"], pictures["panel"], [str(path) for path in paths]
