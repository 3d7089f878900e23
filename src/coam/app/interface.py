"""The page: tabs, inputs, outputs, and which function answers which event."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coam.app.engine import (
    PICTURES,
    Engine,
    MatcherLoader,
    default_loader,
    draw_or_lines,
    model_names,
    summary_of,
    write_results,
)
from coam.app.limits import DEFAULT_LIMITS, Limits
from coam.app.settings import import_gradio
from coam.errors import CoamError

_ONE_JOB = "one-job"  # all work shares one queue, one job at a time
_INTRODUCTION = (
    "# coam\nCorrespondences between two photos of one place when light, season or viewpoint have changed. "
    "Photos stay on this machine and are deleted after use."
)


def create_app(matcher_loader: MatcherLoader = default_loader, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The web app as a `gradio.Blocks`; nothing is loaded or started before it is launched and used.

    matcher_loader: gives the `Matcher` of a model's name, on first use.
    """
    gradio = import_gradio()
    engine = Engine(matcher_loader, limits)
    age = limits.keep_files_seconds
    with gradio.Blocks(title="coam", analytics_enabled=False, delete_cache=(age // 4, age)) as app:
        gradio.Markdown(_INTRODUCTION)
        with gradio.Tab("Match"):
            _match_tab(gradio, engine)
        with gradio.Tab("Explain"):
            _explain_tab(gradio, engine)
        if _has_reconstruction():
            from coam.app.reconstruct import reconstruct_tab

            with gradio.Tab("Reconstruct"):
                reconstruct_tab(gradio, engine)
    app.queue(max_size=limits.waiting_jobs, default_concurrency_limit=1)
    return app


def _has_reconstruction() -> bool:
    from importlib.util import find_spec

    return all(
        find_spec(name) is not None for name in ("pycolmap", "coam.sfm.pipeline", "coam.app.reconstruct")
    )


def photo_input(gradio: Any, label: str, name: str) -> Any:
    """A place for one photo. The file goes to `Engine.read` as it is, which opens it with its guards."""
    photo = gradio.Image(
        label=label, type="filepath", image_mode=None, format="png", sources=["upload", "clipboard"],
        height=300, elem_id=name, buttons=["fullscreen"],
    )  # fmt: skip
    photo.preprocess = lambda payload: None if payload is None else payload.path
    return photo


def settings_row(gradio: Any, engine: Engine, with_matches: bool) -> list[Any]:
    """Model, resolution and, where asked, the number of matches."""
    names = model_names()
    inputs = [
        gradio.Dropdown(names, value=names[0], label="model"),
        gradio.Dropdown(list(engine.limits.resolutions), value=512, label="resolution (long side, pixels)"),
    ]
    if with_matches:
        inputs.append(
            gradio.Slider(16, engine.limits.most_matches, value=2048, step=16, label="most matches")
        )
    return inputs


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


def result_folder() -> Path:
    """A new folder for results, where the app's file cache finds and later deletes them."""
    return Path(tempfile.mkdtemp(prefix="coam-result-"))


def framed(page: str, height: int = 640) -> str:
    """A self-contained page inside the app: its scripts run, but cannot reach the app around it."""
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{height}px;border:0;border-radius:8px" '
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )


def _match_tab(gradio: Any, engine: Engine) -> None:
    with gradio.Row():
        photos = [
            photo_input(gradio, "photo 1", "match-photo-1"),
            photo_input(gradio, "photo 2", "match-photo-2"),
        ]
    example_buttons(gradio, photos)
    with gradio.Row():
        settings = settings_row(gradio, engine, with_matches=True)
        kind = gradio.Dropdown(list(PICTURES), value="lines", label="picture")
    with gradio.Row():
        start = gradio.Button("Match", variant="primary", elem_id="match-start")
        stop = gradio.Button("Cancel", elem_id="match-cancel")
    status = gradio.Markdown(elem_id="match-status")
    picture = gradio.Image(label="matches", elem_id="match-picture", format="png", interactive=False)
    with gradio.Accordion("Look closer: pan, zoom, hover, filter, flicker", open=False):
        page = gradio.HTML(elem_id="match-page")
    files = gradio.File(label="download", file_count="multiple", elem_id="match-files", interactive=False)

    def run(path0: str, path1: str, model: str, resolution: int, most: float, shown: str) -> Iterator[Any]:
        # A generator: between its steps a cancelled job ends.
        from coam.viz import match_page

        with told(gradio):
            photo0, photo1 = engine.read(path0, "photo 1"), engine.read(path1, "photo 2")
            yield "loading the model …", None, None, None
            matcher = engine.matcher(model, int(resolution), int(most))
            yield "looking at photo 1 …", None, None, None
            prepared0 = engine.prepare(matcher, photo0)
            yield "looking at photo 2 …", None, None, None
            prepared1 = engine.prepare(matcher, photo1)
            yield "matching …", None, None, None
            matches = engine.match(matcher, prepared0, prepared1)
            drawn, note = draw_or_lines(matches, shown)
            results = write_results(matches, drawn, result_folder())
            yield summary_of(matches, note), drawn, framed(match_page(matches)), results

    job = start.click(
        run,
        [*photos, *settings, kind],
        [status, picture, page, files],
        concurrency_id=_ONE_JOB,
        api_visibility="private",
        show_progress_on=[status],
    )
    stop.click(lambda: "cancelled", None, status, cancels=[job], queue=False, api_visibility="private")


def _explain_tab(gradio: Any, engine: Engine) -> None:
    gradio.Markdown("Choose two photos, then **click a point in photo 1**: what does the network look at?")
    with gradio.Row():
        photos = [
            photo_input(gradio, "photo 1: click a point", "explain-photo-1"),
            photo_input(gradio, "photo 2", "explain-photo-2"),
        ]
    example_buttons(gradio, photos)
    with gradio.Row():
        settings = settings_row(gradio, engine, with_matches=False)
        maps = gradio.Checkbox(label="also show distinctiveness", value=False)
    status = gradio.Markdown(elem_id="explain-status")
    picture = gradio.Image(label="attention", elem_id="explain-picture", format="png", interactive=False)

    def answer(
        path0: str, path1: str, model: str, resolution: int, distinctiveness: bool, event: Any
    ) -> tuple[str, Any]:
        import time

        from coam.viz import draw_explanation

        with told(gradio):
            photo0, photo1 = engine.read(path0, "photo 1"), engine.read(path1, "photo 2")
            began = time.perf_counter()
            matcher = engine.matcher(model, int(resolution), 1)
            prepared0, prepared1 = engine.prepare(matcher, photo0), engine.prepare(matcher, photo1)
            width, height = photo0.image.size
            point = (
                min(max(float(event.index[0]), 0), width - 1),
                min(max(float(event.index[1]), 0), height - 1),
            )
            explanation = engine.explain(matcher, prepared0, prepared1, point)
            drawn = draw_explanation(explanation, distinctiveness=distinctiveness)
            words = (
                f"({point[0]:.0f}, {point[1]:.0f}) in photo 1 → "
                f"**({explanation.best[0]:.1f}, {explanation.best[1]:.1f})** in photo 2, "
                f"answered in {time.perf_counter() - began:.2f} s"
            )
            return words, drawn

    answer.__annotations__["event"] = gradio.SelectData  # gradio hands the click to the argument of this type
    photos[0].select(
        answer,
        [*photos, *settings, maps],
        [status, picture],
        concurrency_id=_ONE_JOB,
        api_visibility="private",
        show_progress_on=[status],
        trigger_mode="always_last",
    )


class told:
    """Turns a `CoamError` into the message that the visitor reads; other errors stay unspecific for them."""

    def __init__(self, gradio: Any) -> None:
        self._gradio = gradio

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, CoamError):
            raise self._gradio.Error(html.escape(str(error)), title="", print_exception=False) from error
