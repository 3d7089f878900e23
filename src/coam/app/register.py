"""The tab Register: photo 2 laid onto photo 1, how sure that is and why; swipe, flicker, residual arrows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coam.app import components as ui
from coam.app.engine import PHOTO_LABELS, Engine, Upload
from coam.app.jobs import Answer, Job, Steps, connect_job
from coam.app.match import pair_ready
from coam.app.page import framed, result_folder
from coam.errors import ConfigError

if TYPE_CHECKING:
    from coam.registration import Registration

TITLE = "photo 2 on photo 1: swipe, flicker, checkerboard, residual arrows"


def register_tab(gradio: Any, engine: Engine, pair: list[Any]) -> tuple[Job, list[Any]]:
    """Add the tab's parts to the page that is being built; gives its job and the job's inputs."""
    from coam.registration.fitting import MODELS

    gradio.Markdown(
        "Photo 2 laid onto photo 1, pixel on pixel: two seasons, two sensors, two lights. **How sure it is** "
        "stands with the result; what is not to be trusted is shown, with the reason, but not handed out."
    )
    kind = gradio.Dropdown(
        list(MODELS), value=MODELS[0], label="transform", elem_id="register-kind",
        info="auto: the simplest that explains matches it was not fitted to. Splines bend; dense takes the "
        "network's own place for every pixel.",
    )  # fmt: skip
    controls = ui.job_controls(gradio, "register", "Register")
    page = gradio.HTML(elem_id="register-page")
    reasons = gradio.Markdown(elem_id="register-reasons")
    files = ui.downloads(
        gradio, "register",
        "download: photo 2 on photo 1 (.png), the registration (.json), control points (.points), this page "
        "(.html)",
    )  # fmt: skip

    def register(
        photo1: str, photo2: str, model: str, resolution: int, most: float, looks: str, kind: str
    ) -> Steps:
        """Lay photo 2 onto photo 1: the moved photo, the registration as .json, control points, a page."""
        if kind not in MODELS:
            raise ConfigError(f"there is no transform {kind!r}; choose one of {', '.join(MODELS)}")
        matcher, photos = yield from pair_ready(engine, photo1, photo2, model, resolution, most, looks)
        found = yield from engine.match_pair(matcher, photos)
        yield "fitting, and looking closer where photos are large …"
        began = time.perf_counter()
        registration = engine.register(matcher, photos, found, kind)
        seconds = sum(found.seconds.values()) + time.perf_counter() - began
        yield "drawing …"
        paths, whole = write_registration(registration, photos, result_folder(engine.limits.file_seconds))
        lines = registration.in_words(*_NAMES)[1:]  # the first is in the page's own head
        shown = framed(whole, TITLE), "\n".join(f"- {line}" for line in lines)
        return Answer(words_of(registration, seconds), shown, paths, facts_of(registration))

    inputs = [*pair, kind]
    connect_job(gradio, controls, register, inputs, [page, reasons], files, engine.limits.job_seconds)
    return register, inputs


_NAMES = (PHOTO_LABELS[1], PHOTO_LABELS[0])  # the moving and the fixed image


def words_of(registration: Registration, seconds: float) -> str:
    """The line above the page: kind, confidence, whether it is refused; the page itself says why."""
    words = (
        f"**{registration.transform.kind}**  ·  right with a probability of "
        f"**{registration.confidence:.2f}**  ·  {seconds:.1f} s"
    )
    if registration.refusal:
        words += "  ·  ⚠ **not to be trusted**, so the moved photo is not handed out"
    return words


def facts_of(registration: Registration) -> dict[str, Any]:
    """The same for programs."""
    told = registration.to_json()
    names = (
        "confidence",
        "held_out_error",
        "inliers",
        "inlier_share",
        "overlap",
        "coverage",
        "against",
        "uncertainty",
    )
    return {
        "kind": registration.transform.kind,
        "matrix": told["transform"]["matrix"],
        "why": registration.why,
        "refusal": registration.refusal,
        **{name: told["quality"][name] for name in names},
    }


def write_registration(
    registration: Registration, photos: list[Upload], folder: Path
) -> tuple[list[str], str]:
    """Write what may be handed out into `folder`; gives the paths and the page."""
    from coam.registration.outputs import write_outputs
    from coam.registration.pictures import overlay_of, registration_page
    from coam.registration.rasters import of_array
    from coam.registration.resampling import DEFAULT_RESAMPLE
    from coam.store.atomic import write_text

    moving, fixed = (of_array(photos[n].image.rgb, PHOTO_LABELS[n]) for n in (1, 0))
    whole = registration_page(registration, overlay_of(registration, moving, fixed), _NAMES)
    names = ["registration.json", "registration.points"]
    if not registration.refusal:
        names = ["photo-2-on-photo-1.png", *names]
    paths = [folder / name for name in names]
    write_outputs(registration, moving, fixed, paths, DEFAULT_RESAMPLE)
    write_text(folder / "registration.html", whole)
    return [str(path) for path in (*paths, folder / "registration.html")], whole
