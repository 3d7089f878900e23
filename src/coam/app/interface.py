"""The page: one pair of photos, and a tab for each thing to do with it; reconstruction has its own photos."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from coam.app import components as ui
from coam.app.compare import compare_tab
from coam.app.engine import (
    DEFAULT_LIMITS,
    PHOTO_LABELS,
    Engine,
    Limits,
    MatcherLoader,
    default_loader,
    has_stylizer,
)
from coam.app.explain import explain_tab
from coam.app.geometry import geometry_tab
from coam.app.jobs import PRIVATE, Job
from coam.app.match import match_tab
from coam.app.programs import publish
from coam.app.register import register_tab
from coam.app.warp import warp_tab

_INTRODUCTION = (
    "# coam\nCorrespondences between two photos of one place when light, season or viewpoint have changed. "
    "Photos stay on this machine and are deleted after use."
)
# Which parts of the page a tab needs: those of the pair, or none of them.
_SHOW_PAIR = "() => { document.body.classList.remove('coam-no-pair'); }"
_HIDE_PAIR = "() => { document.body.classList.add('coam-no-pair'); }"


def create_app(
    matcher_loader: MatcherLoader = default_loader,
    limits: Limits = DEFAULT_LIMITS,
    device: str = "auto",
    api: bool = False,
) -> Any:
    """The web app as a `gradio.Blocks`; nothing is loaded or started before it is launched and used.

    matcher_loader: gives the `Matcher` of a model's and a device's name, on first use. api: whether programs
    may call the tabs' jobs over HTTP (docs/app.md).
    """
    gradio = ui.import_gradio()
    engine = Engine(matcher_loader, limits, device, ui.upload_folder())
    age = limits.file_seconds
    jobs: dict[str, tuple[Job, list[Any]]] = {}
    closing: list[Callable[[], None]] = []
    with gradio.Blocks(title="coam", analytics_enabled=False, delete_cache=(age // 4, age)) as app:
        # Outside the tabs: parts of a tab that is not shown know nothing of the browser yet.
        key = gradio.BrowserState(None, storage_key="coam-reconstruction")
        with gradio.Row(elem_id="head"):
            gradio.Markdown(_INTRODUCTION)
            gradio.Button("Tour", size="sm", elem_id="tour-start", scale=0, min_width=90)
        with gradio.Column(elem_id="pair"):
            with gradio.Row():
                sources = ["upload", "webcam", "clipboard"]
                photos = [
                    ui.photo_input(gradio, f"photo-{number}", label, 230, sources)
                    for number, label in enumerate(PHOTO_LABELS, start=1)
                ]
            examples = gradio.Row()
            with gradio.Accordion(
                "Settings: model, resolution, how thoroughly", open=False, elem_id="settings"
            ):
                settings = ui.settings(gradio, engine)
        pair = [*photos, *settings]
        with gradio.Tabs(elem_id="tabs"):
            with _tab(gradio, "Match"):
                jobs["match"] = match_tab(gradio, engine, pair)
            with _tab(gradio, "Warp"):
                jobs["warp"] = warp_tab(gradio, engine, pair)
            with _tab(gradio, "Register"):
                jobs["register"] = register_tab(gradio, engine, pair)
            with _tab(gradio, "Geometry"):
                jobs["geometry"] = geometry_tab(gradio, engine, pair)
            with _tab(gradio, "Explain"):
                explain, inputs, clicked = explain_tab(gradio, engine, pair)
                jobs["explain"] = explain, inputs
            if has_stylizer():
                from coam.app.stylize import stylize_tab

                with _tab(gradio, "Stylize"):
                    jobs["stylize"] = stylize_tab(gradio, engine, pair)
            with _tab(gradio, "Compare"):
                jobs["compare"] = compare_tab(gradio, engine, pair)
            if all(find_spec(name) for name in ("pycolmap", "coam.sfm.pipeline", "coam.cli.sfm")):
                from coam.app.reconstruct import reconstruct_tab
                from coam.app.reconstruction import Reconstructions

                works = Reconstructions()
                closing.append(works.close)
                with _tab(gradio, "Reconstruct", with_pair=False):
                    jobs |= reconstruct_tab(gradio, app, engine, works, key)
        for number, (photo, label) in enumerate(zip(photos, PHOTO_LABELS, strict=True)):
            ui.show_previews(gradio, engine, photo, label, [clicked] if number == 0 else [])
        with examples:
            ui.examples_row(gradio, engine, ui.EXAMPLES, photos, [clicked])
        if api:
            publish(gradio, jobs, limits)
    app.coam_closing = closing  # to be called when the app ends
    app.queue(max_size=limits.waiting_jobs, default_concurrency_limit=1)
    return app


def _tab(gradio: Any, name: str, with_pair: bool = True) -> Any:
    tab = gradio.Tab(name, elem_id=f"tab-{name.lower()}")
    tab.select(None, js=_SHOW_PAIR if with_pair else _HIDE_PAIR, **PRIVATE)
    return tab
