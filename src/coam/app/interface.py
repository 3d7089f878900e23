"""The page: tabs, inputs, outputs, and which function answers which event."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from importlib.util import find_spec
from typing import Any

from coam.app import components as ui
from coam.app.engine import (
    DEFAULT_LIMITS,
    LOOKS,
    PICTURES,
    Engine,
    Limits,
    MatcherLoader,
    default_loader,
    draw_or_lines,
    has_stylizer,
    summary_of,
    write_results,
)
from coam.errors import CoamError

_INTRODUCTION = (
    "# coam\nCorrespondences between two photos of one place when light, season or viewpoint have changed. "
    "Photos stay on this machine and are deleted after use."
)


def create_app(
    matcher_loader: MatcherLoader = default_loader, limits: Limits = DEFAULT_LIMITS, device: str = "auto"
) -> Any:
    """The web app as a `gradio.Blocks`; nothing is loaded or started before it is launched and used.

    matcher_loader: gives the `Matcher` of a model's and a device's name, on first use.
    """
    gradio = ui.import_gradio()
    engine = Engine(matcher_loader, limits, device, ui.upload_folder())
    age = limits.file_seconds
    with gradio.Blocks(title="coam", analytics_enabled=False, delete_cache=(age // 4, age)) as app:
        gradio.Markdown(_INTRODUCTION)
        with gradio.Tab("Match"):
            _match_tab(gradio, engine)
        with gradio.Tab("Explain"):
            _explain_tab(gradio, engine)
        if all(find_spec(name) for name in ("pycolmap", "coam.sfm.pipeline", "coam.cli.sfm")):
            from coam.app.reconstruct import reconstruct_tab

            with gradio.Tab("Reconstruct"):
                reconstruct_tab(gradio, engine)
        if has_stylizer():
            from coam.app.stylize import stylize_tab

            with gradio.Tab("Stylize"):
                stylize_tab(gradio, engine)
    app.queue(max_size=limits.waiting_jobs, default_concurrency_limit=1)
    return app


def _match_tab(gradio: Any, engine: Engine) -> None:
    photos = ui.photo_pair(gradio, "match", ("photo 1", "photo 2"), ui.MATCH_EXAMPLES)
    with gradio.Row():
        settings = ui.settings_row(gradio, engine)
        most = gradio.Slider(16, engine.limits.max_matches, value=2048, step=16, label="most matches")
        kind = gradio.Dropdown(list(PICTURES), value="lines", label="picture")
    looks = gradio.Radio(
        list(LOOKS), value=list(LOOKS)[-1], label="how thoroughly",
        info="One look is quickest. An aligned look sees both photos once more from one viewpoint. A search "
        "also tries zooms and turns where nothing was found.",
    )  # fmt: skip
    controls = ui.job_controls(gradio, "match", "Match")
    picture = ui.picture_output(gradio, "match-picture")
    with gradio.Accordion("Look closer: pan, zoom, hover, filter, flicker", open=False):
        page = gradio.HTML(elem_id="match-page")
    files = gradio.File(label="download", file_count="multiple", elem_id="match-files", interactive=False)

    def run(
        path0: str, path1: str, model: str, resolution: int, most: float, looks: str, shown: str
    ) -> Generator[Any, None, None]:
        from coam.viz import match_page

        try:
            load = partial(engine.matcher, model, int(resolution), int(most), looks)
            steps = ui.prepare_pair(engine, (path0, path1), ("photo 1", "photo 2"), load)
            matcher, _, prepared, began = yield from steps
            yield "matching …", None, None, None
            matches = engine.match(matcher, *prepared)
            seconds = time.perf_counter() - began
            drawn, note = draw_or_lines(matches, shown)
            results = write_results(matches, drawn, ui.result_folder(engine.limits.file_seconds))
            yield summary_of(matches, seconds, note), drawn, ui.framed(match_page(matches)), results
        except CoamError as error:
            yield ui.refusal(gradio, error), None, None, None

    ui.connect_job(
        controls,
        run,
        [*photos, *settings, most, looks, kind],
        [picture, page, files],
        engine.limits.job_seconds,
    )


def _explain_tab(gradio: Any, engine: Engine) -> None:
    gradio.Markdown("Choose two photos, then **click a point in photo 1**: what does the network look at?")
    photos = ui.photo_pair(gradio, "explain", ("photo 1: click a point", "photo 2"), ui.MATCH_EXAMPLES)
    with gradio.Row():
        settings = ui.settings_row(gradio, engine)
        maps = gradio.Checkbox(label="also show distinctiveness", value=False)
    status = gradio.Markdown(elem_id="explain-status")
    picture = ui.picture_output(gradio, "explain-picture")

    def answer(
        path0: str, path1: str, model: str, resolution: int, distinctiveness: bool, event: Any
    ) -> tuple[str, Any]:
        from coam.viz import draw_explanation

        try:
            photo0, photo1 = engine.read(path0, "photo 1"), engine.read(path1, "photo 2")
            began = time.perf_counter()
            matcher = engine.matcher(model, int(resolution))
            prepared0, prepared1 = engine.prepare(matcher, photo0), engine.prepare(matcher, photo1)
            x, y = (
                min(max(float(at), 0), side - 1)
                for at, side in zip(event.index, photo0.image.size, strict=True)
            )
            explanation = engine.explain(matcher, prepared0, prepared1, (x, y))
            drawn = draw_explanation(explanation, distinctiveness=distinctiveness)
            words = (
                f"({x:.0f}, {y:.0f}) in photo 1 → "
                f"**({explanation.best[0]:.1f}, {explanation.best[1]:.1f})** in photo 2, "
                f"answered in {time.perf_counter() - began:.2f} s"
            )
            return words, drawn
        except CoamError as error:
            return ui.refusal(gradio, error), None

    answer.__annotations__["event"] = gradio.SelectData  # gradio hands the click to the argument of this type
    photos[0].select(
        answer,
        [*photos, *settings, maps],
        [status, picture],
        show_progress_on=[status],
        trigger_mode="always_last",
        **ui.JOB_EVENT,
    )
