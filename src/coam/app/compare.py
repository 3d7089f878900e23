"""The tab Compare: two matchers on the same pair: ours, SIFT, and peers where they are installed."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from coam.app import components as ui
from coam.app.engine import LOOKS, Engine, MatchedPair, Upload, model_names
from coam.app.jobs import Answer, Job, Steps, connect_job
from coam.app.page import framed, result_folder
from coam.errors import ConfigError
from coam.types import Matches

OWN_LOOK = list(LOOKS)[-1]
SIFT_KEYPOINTS = 4096  # of each photo, OpenCV's detectors


@cache
def others() -> tuple[str, ...]:
    """Matchers that are not ours and can be used here: OpenCV's, and peers whose weights are installed."""
    from coam.evaluation.matchers.peers import PEERS

    found = ["sift", "rootsift", "orb"]
    if find_spec("kornia") is not None:
        found += [name for name, peer in PEERS.items() if all(file.find() for file in peer.files)]
    return tuple(found)


@dataclass(frozen=True)
class Compared:
    """What one matcher made of the pair."""

    name: str
    found: MatchedPair
    seconds: float
    licence: str


def compare_tab(gradio: Any, engine: Engine, pair: list[Any]) -> tuple[Job, list[Any]]:
    """Add the tab's parts to the page that is being built; gives its job and the job's inputs."""
    side = engine.limits.compared_side
    gradio.Markdown(
        f"The same pair, two matchers. Photos are shrunk to {side} px, ours looks as set above; the others "
        "work as their authors use them. **Inliers of one model are no proof**: look at the lines too."
    )
    choices = [*model_names(), *others()]
    with gradio.Row():
        left = gradio.Dropdown(choices, value=choices[0], label="left", info="The first matcher.")
        right = gradio.Dropdown(choices, value="sift", label="right", info="The one to compare it with.")
    controls = ui.job_controls(gradio, "compare", "Compare")
    table = gradio.Markdown(elem_id="compare-table")
    with gradio.Row():
        pages = [gradio.HTML(elem_id=f"compare-page-{number}", min_width=340) for number in (1, 2)]
    files = ui.downloads(gradio, "compare", "download: the matches of both (.npz)")

    def compare(
        photo1: str,
        photo2: str,
        model: str,
        resolution: int,
        most: float,
        looks: str,
        left: str,
        right: str,
    ) -> Steps:
        """Two matchers on the same pair: matches of both as .npz, and their figures."""
        for name in (left, right):
            if name not in choices:
                raise ConfigError(f"there is no matcher {name!r} here; choose one of {', '.join(choices)}")
        photos = [
            engine.read(path, label) for path, label in zip((photo1, photo2), ui.PHOTO_LABELS, strict=True)
        ]
        folder = result_folder(engine.limits.file_seconds)
        paths = shrunk(photos, side, folder)
        results = []
        for name in (left, right):
            own = (int(resolution), int(most), looks)
            results.append((yield from one_matcher(engine, name, paths, own)))
        yield "drawing …"
        files = [
            str(each.found.matches.save(folder / f"{number}-{each.name.replace('+', '-')}.npz"))
            for number, each in enumerate(results, start=1)
        ]
        facts = {each.name: facts_of(each) for each in results}
        words = "  ·  ".join(f"**{each.name}** {len(each.found.matches):,} matches" for each in results)
        return Answer(words, (table_of(results), *map(page_of, results)), files, facts)

    inputs = [*pair, left, right]
    connect_job(gradio, controls, compare, inputs, [table, *pages], files, engine.limits.job_seconds)
    return compare, inputs


def shrunk(photos: Sequence[Upload], side: int, folder: Path) -> list[Path]:
    """The photos as files whose long side is at most `side` pixels: what every matcher gets."""
    paths = []
    for number, photo in enumerate(photos, start=1):
        picture = Image.fromarray(photo.image.rgb)
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        paths.append(folder / f"photo-{number}.png")
        picture.save(paths[-1], compress_level=1)
    return paths


def one_matcher(
    engine: Engine, name: str, paths: Sequence[Path], own: tuple[int, int, str]
) -> Generator[str, None, Compared]:
    """The pair as one matcher sees it. own: resolution, matches and looks of our models."""
    from coam.images import load_image

    yield f"{name}: loading …"
    if name in model_names():
        licence, matcher = "Apache-2.0", engine.matcher(name, *own)
        began = time.perf_counter()
        yield f"{name}: matching …"
        prepared = [matcher.prepare(load_image(path).rgb) for path in paths]
        matches = engine.match(matcher, prepared[0], prepared[1])
    else:
        spec, other = engine.other_matcher(name)
        licence = spec.licence or "OpenCV"
        began = time.perf_counter()
        yield f"{name}: matching …"
        matches = next(iter(other.match_many([(paths[0], paths[1])])))
        pictures = [load_image(path).rgb for path in paths]
        matches = with_pictures(matches, pictures)
    seconds = time.perf_counter() - began
    yield f"{name}: judging …"
    models = tuple(each for each in (matches.homography(), matches.fundamental()) if each is not None)
    return Compared(name, MatchedPair(matches, models, {"in all": seconds}), seconds, licence)


def with_pictures(matches: Matches, pictures: Sequence[Any]) -> Matches:
    """The matches with the photos they are of, for drawing; nothing of where these lie."""
    from dataclasses import replace

    meta = {key: value for key, value in matches.meta.items() if key not in ("image0", "image1")}
    return replace(matches, image0=pictures[0], image1=pictures[1], meta=meta)


def facts_of(result: Compared) -> dict[str, Any]:
    """The figures of one matcher."""
    return {
        "matches": len(result.found.matches),
        "inliers": {model.kind: int(model.inliers.sum()) for model in result.found.models},
        "seconds": round(result.seconds, 3),
        "licence": result.licence,
    }


def table_of(results: Sequence[Compared]) -> str:
    """The figures of both as a Markdown table."""
    kinds = {"homography": "of one plane (3 px)", "fundamental": "of two views (1 px)"}
    rows = ["| | matches | inliers " + " | inliers ".join(kinds.values()) + " | seconds | licence |"]
    rows.append("|---|---|---|---|---|---|")
    for each in results:
        facts = facts_of(each)
        inliers = [f"{facts['inliers'].get(kind, 0):,}" for kind in kinds]
        cells = [f"**{each.name}**", f"{facts['matches']:,}", *inliers, f"{each.seconds:.2f}", each.licence]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def page_of(result: Compared) -> str:
    """The matches of one matcher as a page inside the page."""
    from coam.viz import match_page

    page = match_page(result.found.matches, longest=1200, models=result.found.models)
    return framed(page, f"matches of {result.name}", height="clamp(360px, 52vh, 560px)")
