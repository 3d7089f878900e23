"""The tab Match: lines between the photos that filters and colours act on at once, figures, downloads."""

from __future__ import annotations

import math
from typing import Any

from coam.app import components as ui
from coam.app.engine import PICTURES, Engine, draw_or_lines, figures_of, summary_of, write_results
from coam.app.jobs import Answer, Job, Steps, connect_job
from coam.app.page import framed, result_folder


def match_tab(gradio: Any, engine: Engine, pair: list[Any]) -> tuple[Job, list[Any]]:
    """Add the tab's parts to the page that is being built; gives its job and the job's inputs."""
    gradio.Markdown(
        "Which points show the same thing? After matching, the controls above the picture act at once: "
        "the least score, the number of lines, colours by score, place, direction or inliers."
    )
    controls = ui.job_controls(gradio, "match", "Match")
    page = gradio.HTML(elem_id="match-page")
    with gradio.Accordion("As a picture", open=False):
        kind = gradio.Radio(
            list(PICTURES), value="lines", label="picture",
            info="What matches.png shows: choose before matching; matching again is at once.",
        )  # fmt: skip
        picture = ui.picture_output(gradio, "match-picture", "the two photos with their matches")
    files = ui.downloads(gradio, "match", "download: matches (.npz), this page (.html), the picture (.png)")

    def match(
        photo1: str, photo2: str, model: str, resolution: int, most: float, looks: str, picture: str
    ) -> Steps:
        """Match two photos: matches as .npz, an interactive page, a picture."""
        from coam.viz import match_page

        matcher, photos = yield from pair_ready(engine, photo1, photo2, model, resolution, most, looks)
        found = yield from engine.match_pair(matcher, photos)
        seconds = sum(found.seconds.values())
        yield "drawing …"
        drawn, note = draw_or_lines(found.matches, picture)
        whole = match_page(found.matches, models=found.models, figures=figures_of(found))
        files = write_results(found.matches, drawn, whole, result_folder(engine.limits.file_seconds))
        facts = {
            "matches": len(found.matches),
            "overlap": found.matches.overlap if math.isfinite(found.matches.overlap) else None,
            "inliers": {each.kind: int(each.inliers.sum()) for each in found.models},
            "seconds": found.seconds,
        }
        title = "matches: drag, zoom, filter"
        return Answer(summary_of(found.matches, seconds, note), (framed(whole, title), drawn), files, facts)

    inputs = [*pair, kind]
    connect_job(gradio, controls, match, inputs, [page, picture], files, engine.limits.job_seconds)
    return match, inputs


def pair_ready(
    engine: Engine,
    photo1: str | None,
    photo2: str | None,
    model: str,
    resolution: float,
    most: float = 1,
    looks: str = "one look",
) -> Any:
    """The first steps of every job on the pair: reads the photos and loads the model; matcher and photos."""
    photos = engine.read_pair(photo1, photo2)
    yield "loading the model …"
    return engine.matcher(model, int(resolution), int(most), looks), photos
