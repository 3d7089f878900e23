"""The tab Compare: two matchers on the same pair: ours, SIFT, and peers where they are installed."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from coam.app import components as ui
from coam.app.engine import Engine, MatchedPair, Upload, model_names, two_view_models
from coam.app.jobs import Answer, Job, Steps, connect_job
from coam.app.page import framed, result_folder
from coam.errors import ConfigError
from coam.types import Matches

if TYPE_CHECKING:
    from coam.matcher import Matcher


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
        folder = result_folder(engine.limits.file_seconds)
        photos = [shrunk(photo, side, folder) for photo in engine.read_pair(photo1, photo2)]
        results = []
        for name in (left, right):
            yield f"{name}: loading …"
            if name in model_names():
                matcher = engine.matcher(name, int(resolution), int(most), looks)
                results.append((yield from ours(engine, matcher, photos)))
            else:
                results.append((yield from another(engine, name, photos)))
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


def shrunk(photo: Upload, side: int, folder: Path) -> Upload:
    """The photo as a file whose long side is at most `side` pixels: what every matcher gets."""
    from coam.images import load_image

    picture = Image.fromarray(photo.image.rgb)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    path = folder / f"{photo.digest}.png"
    picture.save(path, compress_level=1)
    return Upload(load_image(path), f"{photo.digest} at {side}", str(path), picture.size)


def ours(engine: Engine, matcher: Matcher, photos: Sequence[Upload]) -> Generator[str, None, Compared]:
    """The pair as one of our models sees it."""
    name = matcher.file.name
    yield f"{name}: matching …"
    found = yield from engine.match_pair(matcher, photos)
    found = replace(found, matches=without_paths(found.matches, photos))
    return Compared(name, found, found.seconds["looking"] + found.seconds["matching"], "Apache-2.0")


def another(engine: Engine, name: str, photos: Sequence[Upload]) -> Generator[str, None, Compared]:
    """The pair as a matcher sees it that is not ours."""
    spec, matcher = engine.other_matcher(name)
    yield f"{name}: matching …"
    began = time.perf_counter()
    matches = next(iter(matcher.match_many([(Path(photos[0].path), Path(photos[1].path))])))
    seconds = time.perf_counter() - began
    yield f"{name}: judging …"
    matches = without_paths(matches, photos)
    found = MatchedPair(matches, two_view_models(matches), {"in all": seconds})
    return Compared(name, found, seconds, spec.licence or "OpenCV")


def without_paths(matches: Matches, photos: Sequence[Upload]) -> Matches:
    """The matches with the photos they are of, for drawing, and nothing of where these lie."""
    meta = {key: value for key, value in matches.meta.items() if key not in ("image0", "image1")}
    return replace(matches, image0=photos[0].image.rgb, image1=photos[1].image.rgb, meta=meta)


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
