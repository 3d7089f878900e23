"""The tab Stylize: the view of one photo in the light and colours of another photo of the place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from coam.app import components as ui
from coam.app.engine import Engine, Upload
from coam.app.jobs import Answer, Job, Steps, connect_job
from coam.app.match import pair_ready
from coam.app.page import result_folder
from coam.errors import ConfigError, DataError

if TYPE_CHECKING:
    from coam.stylization import Stylized


def stylize_tab(gradio: Any, engine: Engine, pair: list[Any]) -> tuple[Job, list[Any]]:
    """Add the tab's parts to the page that is being built; gives its job and the job's inputs."""
    gradio.Markdown(
        "**Photo 1** (VIEW) keeps its view and takes the light and colours of **photo 2** (STYLE). "
        "Both must show the same place."
    )
    with gradio.Row():
        strength = gradio.Slider(
            0, 1, value=1, step=0.05, label="strength", elem_id="stylize-strength",
            info="1: all of the new light; 0: the photo as it is. Mixed at once for the same pair.",
        )  # fmt: skip
        force = gradio.Checkbox(
            label="stylize all the same", info="even if the photos seem to show different places",
            elem_id="stylize-force",
        )  # fmt: skip
    controls = ui.job_controls(gradio, "stylize", "Stylize")
    result = ui.picture_output(gradio, "stylize-picture", "photo 1 in the light of photo 2")
    with gradio.Accordion("How it was made: sampled colours and confidence", open=True):
        panel = ui.picture_output(gradio, "stylize-panel", "sampled colours and how far they are trusted")
    files = ui.downloads(gradio, "stylize")

    def stylize(photo1: str, photo2: str, model: str, resolution: int, strength: float, force: bool) -> Steps:
        """Photo 1 in the light and colours of photo 2, as .png."""
        if not 0 <= float(strength) <= 1:
            raise ConfigError("the strength must lie between 0 and 1")
        began = time.perf_counter()
        matcher, photos = yield from pair_ready(engine, photo1, photo2, model, resolution)
        yield "stylizing …"
        made = stylize_or_refuse(engine, matcher, photos, float(strength), bool(force))
        words = f"{words_about(made)}  ·  {time.perf_counter() - began:.1f} s"
        *pictures, files = show(made, result_folder(engine.limits.file_seconds))
        facts = {"overlap": made.overlap, "mean_confidence": float(made.confidence.mean())}
        return Answer(words, tuple(pictures), files, facts)

    inputs = [*pair[:4], strength, force]
    connect_job(gradio, controls, stylize, inputs, [result, panel], files, engine.limits.job_seconds)
    return stylize, inputs


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
