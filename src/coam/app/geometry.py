"""The tab Geometry: homography, fundamental matrix, pose; epipolar lines of clicked points."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coam.app import components as ui
from coam.app.engine import PHOTO_LABELS, Engine, MatchedPair, Upload, figures_of
from coam.app.jobs import ONE_JOB, PRIVATE, Answer, Job, Steps, connect_job, for_tab, with_deadline
from coam.app.match import pair_ready
from coam.app.page import framed, result_folder
from coam.errors import ConfigError, DataError
from coam.store.atomic import write_json

if TYPE_CHECKING:
    from coam.geometry.two_view_models import TwoViewModel

KINDS = {"homography": "homography", "fundamental matrix": "fundamental", "relative pose": "pose"}
THRESHOLDS = (0.25, 20.0)  # pixels
LARGEST_FOCAL = 1e6  # pixels


def geometry_tab(gradio: Any, engine: Engine, pair: list[Any]) -> tuple[Job, list[Any]]:
    """Add the tab's parts to the page that is being built; gives its job and the job's inputs."""
    gradio.Markdown(
        "What explains the matches? A **homography** where the photos show one plane, or the camera only "
        "turned; the **fundamental matrix** for everything else; the **pose** where focal lengths are known. "
        "Click a point in either photo: its epipolar line in both, or where the plane has it."
    )
    with gradio.Row():
        kind = gradio.Radio(
            list(KINDS), value="fundamental matrix", label="geometry", elem_id="geometry-kind",
            info="The pose needs focal lengths: from the photos' EXIF, or given here.",
        )  # fmt: skip
        threshold = gradio.Slider(
            *THRESHOLDS, value=1.0, step=0.25, label="threshold (pixels)", elem_id="geometry-threshold",
            info="A match that misses by less is an inlier. Fitted again when you let go.",
        )  # fmt: skip
        focal = gradio.Number(
            value=0, minimum=0, label="focal length (pixels)", elem_id="geometry-focal",
            info="Of both cameras, for the pose; 0: from the photos' EXIF.",
        )  # fmt: skip
    controls = ui.job_controls(gradio, "geometry", "Fit")
    page = gradio.HTML(elem_id="geometry-page")
    numbers = gradio.Markdown(elem_id="geometry-numbers", elem_classes="numbers")
    files = ui.downloads(gradio, "geometry", "download: the model (.json), matches with it (.npz)")

    def geometry(
        photo1: str,
        photo2: str,
        model: str,
        resolution: int,
        most: float,
        looks: str,
        kind: str,
        threshold: float,
        focal: float | None,
    ) -> Steps:
        """Homography, fundamental matrix or pose of two photos: as .json, and in .npz with the matches."""
        from coam.viz import match_page

        check(kind, threshold, focal)
        matcher, photos = yield from pair_ready(engine, photo1, photo2, model, resolution, most, looks)
        found = yield from engine.match_pair(matcher, photos)
        yield "fitting …"
        began = time.perf_counter()
        fitted = fit(found, photos, KINDS[kind], threshold, focal)
        seconds = time.perf_counter() - began
        if fitted is None:
            raise DataError(f"these {len(found.matches):,} matches determine no {kind}; try other photos")
        figures = [*figures_of(found), ("found by", fitted.estimator)]
        whole = match_page(found.matches, models=[fitted], figures=figures, pick=True)
        count, share = int(fitted.inliers.sum()), float(fitted.inliers.mean())
        words = (
            f"**{kind}**: **{count:,} of {len(found.matches):,} matches** ({share:.0%}) within "
            f"{fitted.threshold:g} px"
            f"  ·  fitted in {seconds:.2f} s" + (f"  ·  ⚠ {fitted.remark}" if fitted.remark else "")
        )
        folder = result_folder(engine.limits.file_seconds)
        shown = (framed(whole, f"the {kind}: click points"), numbers_of(fitted))
        return Answer(words, shown, write_model(found, fitted, folder), fitted.to_json())

    inputs = [*pair, kind, threshold, focal]
    parts = [page, numbers]
    limit = engine.limits.job_seconds
    connect_job(gradio, controls, geometry, inputs, parts, files, limit)
    job = with_deadline(for_tab(gradio, geometry, len(parts)), limit)

    def again(*values: Any) -> Generator[Any, None, None]:
        """Fit the matches that are there; nothing where there are none."""
        if is_matched(engine, values[:6]):
            yield from job(*values)
        else:
            yield tuple(gradio.skip() for _ in range(len(parts) + 2))

    outputs = [controls[2], *parts, files]
    threshold.release(
        again, inputs, outputs, show_progress="hidden", trigger_mode="always_last", **ONE_JOB, **PRIVATE
    )
    return geometry, inputs


def is_matched(engine: Engine, pair: tuple[Any, ...]) -> bool:
    """Whether the matches of this pair with these settings are at hand."""
    path0, path1, model, resolution, most, looks = pair
    if path0 is None or path1 is None:
        return False
    photos = engine.read_pair(path0, path1)  # first: what is no upload loads no network
    return engine.is_matched(engine.matcher(model, int(resolution), int(most), looks), photos)


def check(kind: str, threshold: float, focal: float | None) -> None:
    """Refuse what the controls of the page would not send."""
    if kind not in KINDS:
        raise ConfigError(f"there is no geometry {kind!r}; choose one of {', '.join(KINDS)}")
    if not THRESHOLDS[0] <= float(threshold) <= THRESHOLDS[1]:
        raise ConfigError(f"the threshold must be between {THRESHOLDS[0]:g} and {THRESHOLDS[1]:g} pixels")
    if focal and not 1 <= float(focal) <= LARGEST_FOCAL:
        raise ConfigError(
            f"the focal length must be between 1 and {LARGEST_FOCAL:,.0f} pixels, or 0: from EXIF"
        )


def fit(
    found: MatchedPair, photos: list[Upload], kind: str, threshold: float, focal: float | None
) -> TwoViewModel | None:
    """The model of the matches; a pose takes `focal` (pixels), or with 0 what the photos' EXIF tells."""
    from coam.cli.geometry import GeometryRequest

    for photo, label in zip(photos, PHOTO_LABELS, strict=True):
        if kind == "pose" and not focal and not photo.image.focal35:
            raise DataError(f"{label} tells no focal length, and a pose needs it; give it in pixels")
    request = GeometryRequest(kind, float(threshold), "auto", (None, None), float(focal) if focal else None)
    names = Path(PHOTO_LABELS[0]), Path(PHOTO_LABELS[1])
    return request.fit(found.matches, request.camera_matrices((photos[0].image, photos[1].image), names))


def numbers_of(model: TwoViewModel) -> str:
    """The model's numbers as Markdown."""
    from coam.cli.geometry import geometry_lines

    lines = geometry_lines(model.to_json())
    return "```text\n" + "\n".join(lines) + "\n```"


def write_model(found: MatchedPair, model: TwoViewModel, folder: Path) -> list[str]:
    """Write geometry.json, and matches.npz with the same in `meta["geometry"]`; gives their paths."""
    told = model.to_json()
    write_json(folder / "geometry.json", told)
    matches = replace(found.matches, meta={**found.matches.meta, "geometry": told})
    return [str(folder / "geometry.json"), str(matches.save(folder / "matches.npz"))]
