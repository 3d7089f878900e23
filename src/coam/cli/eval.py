"""`coam eval BENCHMARK --root DIR`: measure a matcher the way the field does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coam.evaluation.matchers import MatcherSpec
    from coam.evaluation.pairs import EvaluationPair

Root = Annotated[Path, typer.Option(help="Folder of the data set, as published.")]
MatcherName = Annotated[
    str,
    typer.Option(
        "--matcher",
        "-m",
        help="A model name or .safetensors file; sift, rootsift, orb; disk, aliked+lightglue, loftr, xfeat; "
        "package.module:function.",
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the results.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="At most so many pairs, taken evenly over the benchmark.")
]
Workers = Annotated[int, typer.Option(min=1, help="Matchers side by side; a sequence stays in one.")]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Keep finished pairs, or compute all again.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Resolution = Annotated[
    int | None, typer.Option(min=32, max=8192, help="Long side in pixels for our matcher.")
]
MaxMatches = Annotated[
    int | None, typer.Option(min=1, help="Our matcher's matches; keypoints of a baseline, or of --keypoints.")
]
Keypoints = Annotated[
    str | None,
    typer.Option(
        help="sift: our model describes SIFT keypoints, as in CAPSNet's tables; default: its dense grid."
    ),
]
Preset = Annotated[str | None, typer.Option(help="Our matcher's settings: default, or paper.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting of our matcher, KEY=VALUE (grid=256, refinement=paper); repeatable."
    ),
]
Estimator = Annotated[str, typer.Option(help="Robust estimator: opencv (USAC_MAGSAC), poselib, plane.")]
Threshold = Annotated[
    float | None, typer.Option(min=0.01, help="Inlier threshold of the estimator in pixels.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the tables as one JSON object.")]
DEFAULT_MATCHER = "cdunet-lite1"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from coam.cli.eval_more import register_more

    group = typer.Typer(no_args_is_help=True, help="Measure matchers on public benchmarks and on your data.")
    group.command("hpatches")(hpatches)
    group.command("posed-pairs")(posed_pairs)
    group.command("megadepth")(megadepth)
    group.command("wxbs")(wxbs)
    group.command("pair-score")(pair_score)
    register_more(group)
    group.command("compare")(compare)
    app.add_typer(group, name="eval")


def hpatches(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    output: Output = None,
    limit: Limit = None,
    workers: Workers = 1,
    resume: Resume = True,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = None,
    preset: Preset = None,
    settings_of_matcher: Set = None,
    estimator: Estimator = "opencv",
    threshold: Threshold = None,
    keep_large: Annotated[bool, typer.Option(help="Also the 8 sequences that D2-Net leaves out.")] = False,
    as_json: Json = False,
) -> None:
    """Planar scenes: MMA at 1 .. 10 px and homography AUC (D2-Net and LoFTR protocols)."""
    from coam.evaluation.hpatches import load_hpatches

    spec = matcher_of(matcher, device, resolution, max_matches, preset, settings_of_matcher)
    settings = _settings(estimator, threshold)
    pairs = load_hpatches(root, keep_large=keep_large)
    _run(
        "hpatches",
        pairs,
        spec,
        folder_of(output, "hpatches", root, spec),
        settings,
        limit,
        workers,
        resume,
        as_json,
    )


def posed_pairs(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    pairs: Annotated[Path | None, typer.Option(help="Pair list; default ROOT/*pairs_with_gt.txt.")] = None,
    output: Output = None,
    limit: Limit = None,
    workers: Workers = 1,
    resume: Resume = True,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = None,
    keypoints: Keypoints = None,
    preset: Preset = None,
    settings_of_matcher: Set = None,
    estimator: Estimator = "opencv",
    threshold: Threshold = None,
    as_json: Json = False,
) -> None:
    """Relative pose on pairs with known pose (YFCC100M, ScanNet): AUC, mAP, accuracy by angle."""
    from coam.evaluation.posed_pairs import load_posed_pairs

    spec = matcher_of(matcher, device, resolution, max_matches, preset, settings_of_matcher, keypoints)
    settings = _settings(estimator, threshold)
    loaded = load_posed_pairs(root, pairs)
    folder = folder_of(output, "posed-pairs", root, spec)
    _run("posed-pairs", loaded, spec, folder, settings, limit, workers, resume, as_json)


def megadepth(
    root: Root,
    index: Annotated[
        Path, typer.Option(help="Folder of the published index: LoFTR's .npz files, or CAPS's easy/ ..")
    ],
    matcher: MatcherName = DEFAULT_MATCHER,
    output: Output = None,
    limit: Limit = None,
    workers: Workers = 1,
    resume: Resume = True,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = None,
    keypoints: Keypoints = None,
    preset: Preset = None,
    settings_of_matcher: Set = None,
    estimator: Estimator = "opencv",
    threshold: Threshold = None,
    as_json: Json = False,
) -> None:
    """Relative pose on MegaDepth: the 1500 pairs of LoFTR, or easy / medium / hard of CAPS."""
    from coam.evaluation.megadepth import load_megadepth

    spec = matcher_of(matcher, device, resolution, max_matches, preset, settings_of_matcher, keypoints)
    settings = _settings(estimator, threshold)
    pairs = load_megadepth(root, index)
    folder = folder_of(output, "megadepth", index, spec)
    _run("megadepth", pairs, spec, folder, settings, limit, workers, resume, as_json)


def wxbs(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    output: Output = None,
    limit: Limit = None,
    workers: Workers = 1,
    resume: Resume = True,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = None,
    preset: Preset = None,
    settings_of_matcher: Set = None,
    estimator: Estimator = "opencv",
    threshold: Threshold = None,
    as_json: Json = False,
) -> None:
    """Hand-clicked points under changes of light, season and sensor: epipolar recall."""
    from coam.evaluation.wxbs import load_wxbs

    spec = matcher_of(matcher, device, resolution, max_matches, preset, settings_of_matcher)
    settings = _settings(estimator, threshold)
    pairs = load_wxbs(root)
    _run(
        "wxbs", pairs, spec, folder_of(output, "wxbs", root, spec), settings, limit, workers, resume, as_json
    )


def pair_score(
    root: Root,
    matcher: MatcherName = DEFAULT_MATCHER,
    output: Output = None,
    limit: Limit = None,
    workers: Workers = 1,
    resume: Resume = True,
    device: Device = "auto",
    resolution: Resolution = None,
    max_matches: MaxMatches = None,
    preset: Preset = None,
    settings_of_matcher: Set = None,
    as_json: Json = False,
) -> None:
    """Does the score know which photos overlap? ROC and calibration."""
    from coam.evaluation.pair_score import load_pair_score

    spec = matcher_of(matcher, device, resolution, max_matches, preset, settings_of_matcher)
    pairs = load_pair_score(root)
    folder = folder_of(output, "pair-score", root, spec)
    _run("pair-score", pairs, spec, folder, {}, limit, workers, resume, as_json)


def compare(
    a: Annotated[Path, typer.Argument(help="Folder (or report.json) of one evaluation.")],
    b: Annotated[Path, typer.Argument(help="The other one, of the same benchmark.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for compare.html and .json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Is B better than A? Paired bootstrap on the pairs that both have seen."""
    from coam.evaluation.compare import compare_reports, comparison_text, write_comparison
    from coam.evaluation.summary import json_ready

    comparison = compare_reports(a, b)
    if output is not None:
        write_comparison(comparison, output)
    typer.echo(json.dumps(json_ready(comparison)) if as_json else comparison_text(comparison))


def matcher_of(
    name: str,
    device: str,
    resolution: int | None,
    max_matches: int | None,
    preset: str | None,
    assignments: list[str] | None = None,
    keypoints: str | None = None,
) -> MatcherSpec:
    from coam.evaluation.matchers import find_matcher

    options = {"resolution": resolution, "max_matches": max_matches, "preset": preset, "keypoints": keypoints}
    spec = find_matcher(name, device=device, **(options | _parse_assignments(assignments or [])))
    if spec.config.get("trained") is False:
        typer.echo(f"warning: {name} is untrained, so its figures mean nothing", err=True)
    return spec


def _parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """KEY=VALUE, where VALUE is a number, true, false, null or a word."""
    from coam.errors import ConfigError

    options: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set {assignment}: wanted KEY=VALUE, for example --set grid=256")
        try:
            options[key.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[key.replace("-", "_")] = value
    return options


def _settings(estimator: str, threshold: float | None) -> dict[str, Any]:
    from coam.errors import ConfigError
    from coam.geometry.robust import ESTIMATORS

    if estimator not in ESTIMATORS:
        raise ConfigError(f"--estimator {estimator} is not known; choose one of {', '.join(ESTIMATORS)}")
    return {"estimator": estimator} | ({} if threshold is None else {"threshold": threshold})


def folder_of(output: Path | None, benchmark: str, root: Path, spec: MatcherSpec) -> Path:
    """Where the results go, after checking that they can."""
    from coam.storage import check_folder

    folder = output or Path("eval") / benchmark / root.resolve().name / spec.name
    check_folder(folder)
    return folder


def _run(
    benchmark_name: str,
    pairs: list[EvaluationPair],
    spec: MatcherSpec,
    folder: Path,
    settings: dict[str, Any],
    limit: int | None,
    workers: int,
    resume: bool,
    as_json: bool,
) -> None:
    from coam.evaluation.benchmarks import find_benchmark
    from coam.evaluation.html_report import write_reports
    from coam.evaluation.runner import evaluate

    benchmark = find_benchmark(benchmark_name)
    total = len(pairs) if limit is None else min(limit, len(pairs))
    with progress_bar(f"{benchmark_name}: {spec.name}", total) as advance:
        report = evaluate(
            benchmark, pairs, spec, folder,
            settings=settings, limit=limit, workers=workers, resume=resume, progress=advance,
        )  # fmt: skip
    write_reports(benchmark, pairs, report, folder)
    print_report(report, folder, as_json)


def print_report(report: dict[str, Any], folder: Path, as_json: bool) -> None:
    from coam.evaluation.summary import json_ready
    from coam.evaluation.text_report import table_text

    if as_json:
        typer.echo(json.dumps({"output": str(folder), "tables": json_ready(report["tables"])}))
        return
    typer.echo(table_text(report))
    typer.echo(f"wrote {folder / 'report.html'}")


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, so that --json stays clean."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
