"""`coam eval invariance`, `stylization`, `sfm`, `localization`, `aachen`: benchmarks of more than cached
matches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from coam.cli.eval import (
    DEFAULT_MATCHER,
    Device,
    Json,
    Limit,
    MatcherName,
    MaxMatches,
    Output,
    Preset,
    Resolution,
    Root,
    Set,
    folder_of,
    matcher_of,
    print_report,
    progress_bar,
)
from coam.errors import ConfigError

if TYPE_CHECKING:
    from coam.evaluation.localization import LocalizationScene
    from coam.evaluation.matchers import MatcherSpec
    from coam.evaluation.pairs import EvaluationPair
    from coam.evaluation.runner import PairBenchmark
    from coam.evaluation.summary import Row


def register_more(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("invariance")(invariance)
    group.command("stylization")(stylization)
    group.command("sfm")(sfm)
    group.command("localization")(localization)
    group.command("aachen")(aachen)


def sfm(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    output: Output = None,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = 4096,
    settings_of_matcher: Set = None,
    with_sift: Annotated[bool, typer.Option("--sift/--no-sift", help="COLMAP's SIFT beside ours.")] = True,
    tracks: Annotated[
        str, typer.Option(help="Our sub-pixel tracks: quantised, merged, or refined in the photos.")
    ] = "refined",
    as_json: Json = False,
) -> None:
    """Reconstruction: the five figures of the paper's tables, ours against SIFT in one run."""
    from coam.evaluation.sfm import evaluate_sfm, find_scenes, sfm_text
    from coam.evaluation.summary import json_ready
    from coam.sfm.pipeline import Tracks

    if tracks not in get_args(Tracks):
        raise ConfigError(f"--tracks {tracks}: choose {', '.join(get_args(Tracks))}")
    scenes = find_scenes(root)
    spec = matcher_of(matcher, device, resolution, max_matches, None, settings_of_matcher)
    folder = folder_of(output, "sfm", root, spec)
    report = evaluate_sfm(
        scenes,
        spec,
        folder,
        with_sift=with_sift,
        tracks=cast(Tracks, tracks),
        say=lambda line: typer.echo(line, err=True),
    )
    typer.echo(json.dumps(json_ready(report["scenes"])) if as_json else sfm_text(report))


def localization(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    output: Output = None,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = 4096,
    settings_of_matcher: Set = None,
    from_scratch: Annotated[
        bool, typer.Option("--map", help="Reconstruct the reference photos too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Locate queries of known pose among photos of known pose: share within 0.25 m / 2 deg and so on."""
    from coam.evaluation.localization import load_localization

    spec = matcher_of(matcher, device, resolution, max_matches, None, settings_of_matcher)
    _localize(
        load_localization(root), spec, folder_of(output, "localization", root, spec), from_scratch, as_json
    )


def aachen(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    when: Annotated[str, typer.Option(help="night or day.")] = "night",
    output: Output = None,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = 4096,
    settings_of_matcher: Set = None,
    as_json: Json = False,
) -> None:
    """Aachen Day-Night v1.1: triangulate, locate, write the submission of the evaluation server."""
    from coam.evaluation.localization import load_aachen

    spec = matcher_of(matcher, device, resolution, max_matches, None, settings_of_matcher)
    _localize(load_aachen(root, when), spec, folder_of(output, "aachen", root, spec), False, as_json)


def _localize(
    scene: LocalizationScene, spec: MatcherSpec, folder: Path, from_scratch: bool, as_json: bool
) -> None:
    from coam.evaluation.localization import evaluate_localization, localization_text
    from coam.evaluation.summary import json_ready

    def say(line: str) -> None:
        typer.echo(line, err=True)

    report = evaluate_localization(scene, spec, folder, from_scratch=from_scratch, say=say)
    typer.echo(json.dumps(json_ready(report["figures"])) if as_json else localization_text(report))
    typer.echo(f"wrote {folder / 'submission.txt'}", err=True)


def invariance(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    output: Output = None,
    limit: Limit = None,
    device: Device = "auto",
    resolution: Resolution = None,
    preset: Preset = None,
    settings_of_matcher: Set = None,
    as_json: Json = False,
) -> None:
    """How much descriptors change with the light, looking at the other photo and alone."""
    from coam.evaluation.invariance import INVARIANCE, load_invariance, measure_invariance
    from coam.evaluation.pairs import limit_pairs

    spec = matcher_of(matcher, device, resolution, None, preset, settings_of_matcher)
    available = load_invariance(root)
    pairs = limit_pairs(available, limit)
    folder = folder_of(output, "invariance", root, spec)
    with progress_bar(f"invariance: {spec.name}", len(pairs)) as advance:
        rows = measure_invariance(spec.create(), pairs, advance)
    _report(INVARIANCE, pairs, rows, spec, len(available), folder, as_json)


def stylization(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    stylizer: Annotated[
        str | None, typer.Option(help="package.module:function (view path, style path) -> picture.")
    ] = None,
    output: Output = None,
    limit: Limit = None,
    device: Device = "auto",
    resolution: Resolution = None,
    preset: Preset = None,
    settings_of_matcher: Set = None,
    weights: Annotated[Path | None, typer.Option(help="A stylizer's .safetensors file.")] = None,
    leaks: Annotated[bool, typer.Option("--leaks", help="Also whether colours of the view leak in.")] = False,
    as_json: Json = False,
) -> None:
    """Colours of another photo, L1 to the truth: simple baselines, warp only, both stages, your stylizer."""
    from coam.evaluation.pairs import limit_pairs
    from coam.evaluation.stylization import (
        STYLIZATION,
        find_stylizer,
        load_stylization,
        measure_stylization,
    )
    from coam.stylization import load_stylizer
    from coam.stylization.apply import RESOLUTION

    function = find_stylizer(stylizer) if stylizer else None
    spec = matcher_of(matcher, device, resolution, None, preset, settings_of_matcher)
    available = load_stylization(root)
    pairs = limit_pairs(available, limit)
    ours = load_stylizer(weights, device=device, resolution=resolution or RESOLUTION)
    folder = folder_of(output, "stylization", root, spec)
    with progress_bar(f"stylization: {spec.name}", len(pairs)) as advance:
        rows = measure_stylization(spec.create(), pairs, function, advance, ours, leaks)
    _report(STYLIZATION, pairs, rows, spec, len(available), folder, as_json)


def _report(
    benchmark: PairBenchmark,
    pairs: list[EvaluationPair],
    rows: list[Row],
    spec: MatcherSpec,
    available: int,
    folder: Path,
    as_json: bool,
) -> None:
    from coam.evaluation.html_report import write_reports
    from coam.evaluation.runner import REPORT, build_report, write_json

    report = build_report(benchmark, pairs, rows, spec, {}, available=available)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / REPORT, report)
    write_reports(benchmark, pairs, report, folder, pictures=False)
    print_report(report, folder, as_json)
