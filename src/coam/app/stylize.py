"""The tab Stylize: the view of one photo in the light and colours of another photo of the place."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from coam.app import components as ui
from coam.app.engine import Engine, Upload
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
    photos = ui.photo_pair(gradio, "stylize", labels, ui.STYLE_EXAMPLES)
    with gradio.Row():
        settings = ui.settings_row(gradio, engine)
        strength = gradio.Slider(0, 1, value=1, step=0.05, label="strength", elem_id="stylize-strength")
        force = gradio.Checkbox(
            label="stylize all the same", info="even if the photos seem to show different places",
            elem_id="stylize-force",
        )  # fmt: skip
    controls = ui.job_controls(gradio, "stylize", "Stylize")
    result = ui.picture_output(gradio, "stylize-picture")
    with gradio.Accordion("How it was made: sampled colours and confidence", open=True):
        panel = ui.picture_output(gradio, "stylize-panel")
    files = gradio.File(label="download", file_count="multiple", elem_id="stylize-files", interactive=False)

    def run(
        view: str, style: str, model: str, resolution: int, strength: float, force: bool
    ) -> Generator[Any, None, None]:
        try:
            load = partial(engine.matcher, model, int(resolution))
            steps = ui.prepare_pair(engine, (view, style), ("VIEW", "STYLE"), load)
            matcher, photos, _, began = yield from steps
            yield "stylizing …", None, None, None
            made = stylize_or_refuse(engine, matcher, photos, float(strength), bool(force))
            words = f"{words_about(made)}  ·  {time.perf_counter() - began:.1f} s"
            yield words, *show(made, ui.result_folder(engine.limits.file_seconds))
        except CoamError as error:
            yield ui.refusal(gradio, error), None, None, None

    ui.connect_job(
        controls,
        run,
        [*photos, *settings, strength, force],
        [result, panel, files],
        engine.limits.job_seconds,
    )


def stylize_or_refuse(
    engine: Engine, matcher: Any, photos: Sequence[Upload], strength: float, force: bool
) -> Stylized:
    """The stylized picture; a refusal tells what to do on the page."""
    from coam.stylization import NoOverlapError
    from coam.stylization.apply import LEAST_OVERLAP

    try:
        return engine.stylize(matcher, photos[0], photos[1], strength, force)
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
