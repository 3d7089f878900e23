"""The tab Reconstruct: a handful of photos in; stages, states, a 3D view, localization, downloads.

A reconstruction is a process that goes on when the page is reloaded: the browser keeps its key.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

from coam import samples
from coam.app import components as ui
from coam.app.commands import Command
from coam.app.engine import Engine, model_names
from coam.app.jobs import ONE_JOB, PRIVATE, Answer, Job, Steps, with_deadline
from coam.app.page import framed, refusal, result_folder
from coam.app.reconstruction import (
    Reconstruction,
    Reconstructions,
    archive_of,
    free_name,
    photo_states,
    scene_of,
    stage_of,
    stages_html,
    states_html,
    summary_of,
    thumbnails,
    words_about,
    write_photo,
)
from coam.errors import CoamError, ConfigError, DataError
from coam.store.documents import read_json

EXAMPLE_VIEWS = slice(3, 9)  # of the courtyard by day: six neighbours, done in less than a minute
_WATCH_AGAIN = {"concurrency_id": "watching", "concurrency_limit": 8}


def bundled_scene(folder: Path) -> list[str]:
    """Copies of some of the bundled courtyard's pictures by day, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return [str(shutil.copy(path, folder / path.name)) for path in samples.courtyard().day[EXAMPLE_VIEWS]]


def reconstruct_tab(
    gradio: Any, app: Any, engine: Engine, all_works: Reconstructions, key: Any
) -> dict[str, tuple[Job, list[Any]]]:
    """Add the tab's parts to `app`, the page that is being built; gives its jobs and their inputs.

    key: the state in which the browser keeps which reconstruction is its own.
    """
    gradio.Markdown(
        f"Two to {engine.limits.max_photos} photos of one place or object, with much overlap: walk around "
        "it, a step between photos. It goes on when you reload the page."
    )
    photos = gradio.File(
        label="photos", file_count="multiple", type="filepath", elem_id="sfm-photos", height=180,
    )  # fmt: skip
    if ui.is_installed(samples.courtyard):
        example = gradio.Button("Example: courtyard, six pictures", size="sm", elem_id="sfm-example")
        example.click(
            lambda: bundled_scene(result_folder(engine.limits.file_seconds)), None, photos, **PRIVATE
        )
    names = model_names()
    with gradio.Row():
        settings = [
            gradio.Dropdown(names, value=names[0], label="model", info="The network that matches."),
            gradio.Dropdown(
                list(engine.limits.resolutions), value=800, label="resolution (long side, pixels)",
                elem_id="sfm-resolution", info="Photos are shrunk to this for matching.",
            ),
        ]  # fmt: skip
    start, stop, status = ui.job_controls(gradio, "sfm", "Reconstruct")
    stages = gradio.HTML(elem_id="sfm-stages")
    page = gradio.HTML(elem_id="sfm-page")
    states = gradio.HTML(elem_id="sfm-states")
    files = gradio.File(
        label="download: model (COLMAP), photos, 3D page", elem_id="sfm-files", interactive=False
    )
    with gradio.Accordion("Where was another photo taken? (after reconstructing)", open=True):
        sources = ["upload", "webcam", "clipboard"]
        query = ui.photo_input(gradio, "sfm-query", "photo to locate", 220, sources)
        gradio.Markdown("It is matched with the model's photos; its camera is drawn in blue.")
        locate = gradio.Button("Locate this photo", variant="primary", elem_id="sfm-locate")
        located = gradio.Markdown(elem_id="sfm-located", elem_classes="status")
    ui.show_previews(gradio, engine, query, "the photo to locate", [])
    parts = [status, stages, page, states, files]
    nothing = (None,) * (len(parts) - 1)

    def finished(work: Reconstruction) -> tuple[Any, ...]:
        summary = summary_of(work)
        scene, observations = scene_of(work)
        table = states_html(photo_states(work, summary, observations), thumbnails(work))
        view = framed(scene, "point cloud with cameras: drag, zoom, click a camera")
        return words_about(summary), None, view, table, archive_of(work, scene)

    def follow(work: Reconstruction) -> Generator[tuple[Any, ...], None, None]:
        """What the page shows of it until it is done, and then."""
        for _ in work.command.wait():
            shown = stages_html(stage_of(work.command.lines), work.command.seconds)
            yield "reconstructing …", shown, None, None, None
        yield "reading the model …", None, None, None, None
        yield finished(work)

    def run(paths: list[str] | None, model: str, resolution: int) -> Generator[Any, None, None]:
        try:
            yield "reading the photos …", *nothing, gradio.skip()
            work = begin(engine, all_works, paths, model, resolution)
            for shown in follow(work):
                yield *shown, work.key
        except CoamError as error:
            yield refusal(gradio, error), *nothing, gradio.skip()

    def again(known: str | None) -> Generator[Any, None, None]:
        """After a reload: goes on watching, or shows what there is."""
        try:
            if known is not None:
                yield from follow(all_works.find(known))
        except CoamError:
            yield "", *nothing

    def cancel(known: str | None) -> str:
        try:
            all_works.find(known).command.stop()
        except CoamError:
            return "nothing is running"
        return "cancelled"

    limit = engine.limits.reconstruction_seconds
    event = start.click(
        with_deadline(run, limit), [photos, *settings], [*parts, key], show_progress_on=[status], **ONE_JOB,
        **PRIVATE,
    )  # fmt: skip
    load = app.load(again, key, parts, show_progress="hidden", **_WATCH_AGAIN, **PRIVATE)
    stop.click(cancel, key, status, cancels=[event, load], queue=False, **PRIVATE)

    def place(path: str | None, known: str | None) -> Generator[Any, None, None]:
        same = (gradio.skip(),) * 3
        try:
            work = all_works.find(known)
            for words in locate_photo(engine, work, path):
                yield words, *same
            _, _, view, table, archive = finished(work)
            yield words_about_place(work), view, table, archive
        except CoamError as error:
            yield refusal(gradio, error), *same

    locate.click(
        with_deadline(place, engine.limits.job_seconds), [query, key], [located, page, states, files],
        show_progress_on=[located], **ONE_JOB, **PRIVATE,
    )  # fmt: skip

    def reconstruct(photos: list[str], model: str, resolution: int) -> Steps:
        """A model of two or more photos: .zip with COLMAP's files, and a key for `localize`."""
        work = begin(engine, all_works, photos, model, resolution)
        for _ in work.command.wait():
            yield "reconstructing …"
        summary = summary_of(work)
        scene, observations = scene_of(work)
        told = photo_states(work, summary, observations)
        facts = {
            "key": work.key,
            "photos": {each.name: [each.state, each.why] for each in told},
            **{name: summary[name] for name in _FIGURES},
        }
        return Answer(words_about(summary), (), [archive_of(work, scene)], facts)

    def localize(photo: str, key: str) -> Steps:
        """Where a photo was taken in the model of that key: pose, camera, confidence."""
        work = all_works.find(key)
        yield from locate_photo(engine, work, photo)
        return Answer(words_about_place(work), (), [], next(reversed(work.located.values())))

    asked = gradio.Textbox(visible=False, label="key")
    return {"reconstruct": (reconstruct, [photos, *settings]), "localize": (localize, [query, asked])}


_FIGURES = ("registered_images", "sparse_points", "mean_track_length", "mean_reprojection_error", "warnings")


def begin(
    engine: Engine, all_works: Reconstructions, paths: list[str] | None, model: str, resolution: int
) -> Reconstruction:
    """Check what a request asks for, and start it."""
    if model not in model_names():
        raise ConfigError(f"there is no model {model!r}; choose one of {', '.join(model_names())}")
    if resolution not in engine.limits.resolutions:
        allowed = ", ".join(map(str, engine.limits.resolutions))
        raise ConfigError(f"resolution must be one of {allowed}")
    folder = result_folder(engine.limits.file_seconds)
    try:
        return all_works.start(engine, paths, folder, model, int(resolution))
    except CoamError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def locate_photo(engine: Engine, work: Reconstruction, path: str | None) -> Generator[str, None, None]:
    """Locate an upload in a finished model, saying what is done; the answer is the last of `work.located`."""
    if not work.finished:
        raise DataError("there is no finished model yet; reconstruct first")
    if len(work.located) >= engine.limits.max_photos:
        raise DataError(f"{len(work.located)} photos were located in this model already; reconstruct again")
    if not work.busy.acquire(blocking=False):
        raise DataError("another photo is being located in this model; wait for it")
    command = None
    try:
        file = f"query_{len(work.located) + 1:03d}.jpg"
        write_photo(engine, path, "the photo to locate", work.folder / file)
        answer = work.folder / "located.json"
        answer.unlink(missing_ok=True)
        arguments = ["localize", str(work.model), str(work.folder / file), "--photos", str(work.photos)]
        arguments += ["--output", str(answer), "--device", engine.device]
        command = Command(arguments, engine.limits.job_seconds)
        try:
            for _ in command.wait():
                yield f"matching with the model's photos … {command.seconds:.0f} s"
        except DataError:
            if not answer.is_file():  # a photo that cannot be located has its answer too
                raise
        told = read_json(answer, shape=[dict], advice="try again")[0]
        name = free_name(f"located {len(work.located) + 1}", set(work.names.values()))
        work.located[name] = {**told, "file": file}
    finally:
        if command is not None:
            command.stop()
        work.busy.release()


def words_about_place(work: Reconstruction) -> str:
    """Where the last photo was taken, or why that is not known."""
    name, answer = next(reversed(work.located.items()))
    if not answer["located"]:
        return f"⚠ **not located**: {answer['reason']}"
    return (
        f"**{name}**: {answer['inliers']} inliers of {answer['lifted_matches']} matches  ·  "
        f"confidence **{answer['confidence']:.2f}**  ·  camera {answer['intrinsics']}"
    )
