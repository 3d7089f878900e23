"""The tab Explain: what the network looks at for a clicked point of photo 1."""

from __future__ import annotations

import math
import time
from typing import Any

from coam.app import components as ui
from coam.app.engine import Engine
from coam.app.jobs import ONE_JOB, PRIVATE, Answer, Job, Steps, for_tab, with_deadline
from coam.app.match import pair_ready
from coam.app.page import refusal, result_folder
from coam.errors import CoamError, ConfigError


def explain_tab(gradio: Any, engine: Engine, pair: list[Any]) -> tuple[Job, list[Any], Any]:
    """Add the tab's parts; gives its job, the job's inputs, and the copy of photo 1 that is clicked."""
    gradio.Markdown(
        "**Click a point in photo 1**, or give its place: its similarity over photo 2 with the best match, "
        "and where the network looks, at both levels of its attention. One look at the photos as they are."
    )
    with gradio.Row():
        photo = gradio.Image(
            label="photo 1: click a point", type="filepath", interactive=False, height=360,
            elem_id="explain-photo", buttons=["fullscreen"], alt_text="photo 1, to click in",
        )  # fmt: skip
        with gradio.Column(min_width=220, scale=0):
            x = gradio.Number(label="x (pixels)", info="From the left of photo 1.", elem_id="explain-x")
            y = gradio.Number(label="y (pixels)", info="From its top.", elem_id="explain-y")
            maps = gradio.Checkbox(
                label="distinctiveness too", info="Which places the network holds for worth matching."
            )
            start = gradio.Button("Explain this point", variant="primary", elem_id="explain-start")
    status = gradio.Markdown(elem_id="explain-status", elem_classes="status")
    picture = ui.picture_output(gradio, "explain-picture", "similarity and attention of the point")
    files = ui.downloads(gradio, "explain")

    def explain(
        photo1: str, photo2: str, model: str, resolution: int, x: Any, y: Any, distinctiveness: bool
    ) -> Steps:
        """Similarity and attention of one point of photo 1 over photo 2, as a picture."""
        from coam.viz import draw_explanation

        began = time.perf_counter()
        matcher, photos = yield from pair_ready(engine, photo1, photo2, model, resolution)
        point = inside((x, y), photos[0].image.size)
        yield "looking …"
        prepared = [engine.prepare(matcher, photo) for photo in photos]
        explanation = engine.explain(matcher, prepared[0], prepared[1], point)
        drawn = draw_explanation(explanation, distinctiveness=bool(distinctiveness))
        words = (
            f"({point[0]:.0f}, {point[1]:.0f}) in photo 1 → "
            f"**({explanation.best[0]:.1f}, {explanation.best[1]:.1f})** in photo 2, "
            f"answered in {time.perf_counter() - began:.2f} s"
        )
        file = result_folder(engine.limits.file_seconds) / "explanation.png"
        drawn.save(file, compress_level=1)
        best = [float(value) for value in explanation.best]
        return Answer(words, (drawn,), [str(file)], {"point": list(point), "best": best})

    inputs, limit = [*pair[:4], x, y, maps], engine.limits.job_seconds
    run = with_deadline(for_tab(gradio, explain, 1), limit)
    outputs = [status, picture, files]
    start.click(run, inputs, outputs, show_progress_on=[status], **ONE_JOB, **PRIVATE)

    def clicked(
        photo1: str, photo2: str, model: str, resolution: int, distinctiveness: bool, event: Any
    ) -> Any:
        try:
            photo = engine.read(photo1, "photo 1")
            scales = [whole / part for whole, part in zip(photo.image.size, photo.shown, strict=True)]
            at = [(index + 0.5) * scale - 0.5 for index, scale in zip(event.index, scales, strict=True)]
        except CoamError as error:
            yield refusal(gradio, error), None, None, None, None
            return
        for words, drawn, made in run(photo1, photo2, model, resolution, *at, distinctiveness):
            yield words, drawn, made, round(at[0]), round(at[1])

    clicked.__annotations__["event"] = (
        gradio.SelectData
    )  # gradio hands the click to the argument of this type
    photo.select(
        clicked, [*pair[:4], maps], [*outputs, x, y], show_progress_on=[status], trigger_mode="always_last",
        **ONE_JOB, **PRIVATE,
    )  # fmt: skip
    return explain, inputs, photo


def inside(point: tuple[float | None, float | None], size: tuple[int, int]) -> tuple[float, float]:
    """The point, moved into a photo of `size`; a `ConfigError` where there is none."""
    if not all(isinstance(at, int | float) and math.isfinite(at) for at in point):
        raise ConfigError("click a point in photo 1, or give its x and y in pixels")
    x, y = (min(max(float(at or 0), 0.0), side - 1.0) for at, side in zip(point, size, strict=True))
    return x, y
