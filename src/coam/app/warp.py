"""The tab Warp: where every pixel lies in the other photo, certainty, swipe, flicker, flow colours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coam.app import components as ui
from coam.app.engine import Engine
from coam.app.jobs import Answer, Job, Steps, connect_job
from coam.app.match import pair_ready
from coam.app.page import framed, result_folder

if TYPE_CHECKING:
    from coam.warp import Warp


def warp_tab(gradio: Any, engine: Engine, pair: list[Any]) -> tuple[Job, list[Any]]:
    """Add the tab's parts to the page that is being built; gives its job and the job's inputs."""
    gradio.Markdown(
        "Photo 2 as the camera of photo 1 would see it. Swipe or flicker between them, point at a place "
        "to see where it lies, raise the certainty to keep what is sure. One look "
        "at upright photos of similar scale."
    )
    controls = ui.job_controls(gradio, "warp", "Warp")
    page = gradio.HTML(elem_id="warp-page")
    files = ui.downloads(
        gradio, "warp", "download: the warp (.warp.npz, .flo), flow colours and the warped photo (.png)"
    )

    def warp(photo1: str, photo2: str, model: str, resolution: int) -> Steps:
        """Dense warp of two photos: places and certainty as .warp.npz and .flo, and pictures."""
        began = time.perf_counter()
        matcher, photos = yield from pair_ready(engine, photo1, photo2, model, resolution)
        yield "finding the place of every pixel …"
        found = engine.warp(matcher, photos)
        yield "drawing …"
        from coam.warp.field import CERTAIN

        certain = float((found.certainty >= CERTAIN).mean())
        mean = float(found.certainty.mean())
        seconds = time.perf_counter() - began
        words = f"**{certain:.0%}** of photo 1 is at least {CERTAIN:.0%} certain  ·  mean certainty "
        words += f"**{mean:.2f}**  ·  {seconds:.1f} s"
        files = write_warp(found, result_folder(engine.limits.file_seconds))
        facts = {"certain_share": certain, "mean_certainty": mean, "map_size": list(found.forward.map_size)}
        return Answer(words, (framed(page_of(found), "the warp: swipe, flicker, certainty"),), files, facts)

    inputs = pair[:4]
    connect_job(gradio, controls, warp, inputs, [page], files, engine.limits.job_seconds)
    return warp, inputs


def page_of(warp: Warp) -> str:
    """The interactive page of a warp that still has its photos."""
    from coam.viz.warp_page import warp_page

    forward = warp.forward
    return warp_page(
        warp.image0, warp.image1, warp.apply(), forward.points, forward.displacement, forward.certainty
    )


def write_warp(warp: Warp, folder: Path) -> list[str]:
    """Write ab.warp.npz, ab.flo, ab.flow.png and ab.warped.png into `folder`; gives their paths."""
    from coam.cli.outputs import write_warp as write_by_ending

    paths = [folder / f"ab.{ending}" for ending in ("warp.npz", "flo", "flow.png", "warped.png")]
    for path in paths:
        write_by_ending(warp, path)
    return [str(path) for path in paths]
