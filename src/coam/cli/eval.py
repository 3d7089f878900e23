"""`coam eval BENCHMARK --root DIR`: measure matchers; a command is made from a benchmark's declaration."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from coam.cli.options import check_choice, require_trained
from coam.cli.printing import say
from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.registry import BENCHMARKS, find_benchmark
from coam.store.atomic import check_folder

if TYPE_CHECKING:
    from coam.evaluation.matchers.by_name import MatcherSpec
    from coam.evaluation.runner import Benchmark, Option, Report

EVERY = (
    "root", "matcher", "output", "device", "resolution", "settings_of_matcher", "allow_untrained", "as_json",
)  # fmt: skip


def shared_options() -> list[Option]:
    """Options that commands share: those of EVERY are in all of them, others where a benchmark says so."""
    from coam.evaluation.runner import Option

    return [
        Option("root", Path, ..., "Folder of the data set, as published."),
        Option(
            "matcher",
            list[str],
            ["cdunet-lite1"],
            "A model name or .safetensors file, or coam+sift: on SIFT keypoints; sift, rootsift, orb; "
            "aliked+lightglue, disk+lightglue, xfeat, xfeat+lighterglue, disk, loftr; "
            "package.module:function. Repeat it to compare.",
            ("--matcher", "-m"),
        ),
        Option("output", Path | None, None, "Folder of the results.", ("--output", "-o")),
        Option("limit", int | None, None, "At most so many pairs, taken evenly over the benchmark.", min=1),
        Option("workers", int, 1, "Matchers side by side; a sequence stays in one.", min=1),
        Option("resume", bool, True, "Keep finished pairs, or compute all again.", ("--resume/--no-resume",)),
        Option("device", str, "auto", "auto, cpu, cuda, cuda:1, mps."),
        Option("resolution", int | None, None, "Long side in pixels for our matcher.", min=32, max=8192),
        Option(
            "max_matches",
            int | None,
            None,
            "Our matcher's matches; keypoints of a baseline, or of --keypoints.",
            min=1,
        ),
        Option(
            "keypoints",
            str | None,
            None,
            "sift: our model matches SIFT keypoints, as -m MODEL+sift does; default: its dense grid.",
        ),
        Option("preset", str | None, None, "Our matcher's settings: default, or paper."),
        Option(
            "settings_of_matcher",
            list[str] | None,
            None,
            "A setting of our matcher, KEY=VALUE (grid=256, refinement=paper); repeatable.",
            ("--set",),
        ),
        Option(
            "estimator",
            str,
            "opencv",
            "Robust estimator: opencv (USAC_MAGSAC), poselib, superansac, plane, auto.",
        ),
        Option("threshold", float | None, None, "Inlier threshold of the estimator in pixels.", min=0.01),
        Option(
            "allow_untrained",
            bool,
            False,
            "Measure a model that has no trained weights.",
            ("--allow-untrained",),
        ),
        Option("as_json", bool, False, "Print the tables as one JSON object.", ("--json",)),
    ]


class BenchmarkGroup(TyperGroup):
    """Makes the command of a benchmark when it is called: the list of commands imports no benchmark."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, benchmark_command(name) if name in BENCHMARKS else command, rest


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=BenchmarkGroup,
        no_args_is_help=True,
        help="Measure matchers on public benchmarks and on your data.",
    )
    for name, entry in BENCHMARKS.items():
        group.command(name, help=entry.help)(_listed_only)
    group.command("compare")(compare)
    app.add_typer(group, name="eval")


def _listed_only() -> None:
    """Stands for a benchmark in the list of commands."""


def benchmark_command(name: str) -> Any:
    """The command of a benchmark, as Typer makes it from a function with these options."""
    benchmark = find_benchmark(name)

    def command(**values: Any) -> None:
        run_benchmark(benchmark, values)

    parameters = [_parameter(option) for option in command_options(benchmark)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False)
    alone.command(name, help=BENCHMARKS[name].help)(command)
    return typer.main.get_command(alone)


def command_options(benchmark: Benchmark) -> list[Option]:
    """The options of a command: --root, --matcher, the benchmark's own, then shared ones."""
    from coam.evaluation.runner import Option

    named = {key for key, value in benchmark.settings.items() if not isinstance(value, Option)}
    applying = {*EVERY, *benchmark.shared, *named}
    shared = [option for option in shared_options() if option.name in applying]
    declared = (*benchmark.options, *benchmark.run_options, *benchmark.settings.values())
    own = [option for option in declared if isinstance(option, Option)]
    return [*shared[:2], *own, *shared[2:]]


def _parameter(option: Option) -> inspect.Parameter:
    shown = typer.Option(*option.flags, help=option.help, min=option.min, max=option.max)
    default = inspect.Parameter.empty if option.default is ... else option.default
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, kind, default=default, annotation=Annotated[option.type, shown])


def run_benchmark(benchmark: Benchmark, values: dict[str, Any]) -> None:
    """Load, measure each matcher, write the reports and print them; several side by side."""
    values = benchmark.filled(values)
    settings = _settings(benchmark, values)
    specs = [matcher_of(name, values) for name in values["matcher"]]
    if len({spec.name for spec in specs}) < len(specs):
        raise ConfigError("two of the matchers have the same name; measure one after the other")
    loaded = load_data(benchmark, values)
    names = [option if isinstance(option, str) else option.name for option in benchmark.run_options]
    options = {name: values[name] for name in names}
    folders = [_folder_of(benchmark, values, spec, alone=len(specs) == 1) for spec in specs]
    for folder in folders:
        check_folder(folder)
    if benchmark.run is not None:
        for spec, folder in zip(specs, folders, strict=True):
            _run_scenes(benchmark, loaded, spec, folder, options, values["as_json"])
        return
    reports = [
        _measure_pairs(benchmark, loaded, spec, folder, settings, options, values)
        for spec, folder in zip(specs, folders, strict=True)
    ]
    if len(reports) == 1:
        _print_report(reports[0], folders[0], values["as_json"])
    else:
        _print_side_by_side(benchmark, reports, folders[0].parent, values["as_json"])


def _folder_of(benchmark: Benchmark, values: dict[str, Any], spec: MatcherSpec, *, alone: bool) -> Path:
    """Where the results of a matcher go: --output, or a folder in it where there are several."""
    output: Path | None = values["output"]
    if output is None:
        label: str = values[benchmark.labelled_by].resolve().name
        return Path("eval") / benchmark.name / label / spec.name
    return output if alone else output / spec.name


def _run_scenes(
    benchmark: Benchmark, loaded: Any, spec: MatcherSpec, folder: Path, options: dict[str, Any], as_json: bool
) -> None:
    from coam.evaluation.metrics.tables import json_ready

    assert benchmark.run is not None
    assert benchmark.text is not None
    report = benchmark.run(loaded, spec, folder, say=lambda line: say(line, err=True), **options)
    say(json.dumps(json_ready(report[benchmark.result])) if as_json else benchmark.text(report))


def _measure_pairs(
    benchmark: Benchmark,
    loaded: Any,
    spec: MatcherSpec,
    folder: Path,
    settings: dict[str, Any],
    options: dict[str, Any],
    values: dict[str, Any],
) -> Report:
    """The report of one matcher, written to its folder."""
    from coam.evaluation.reports.html import write_reports
    from coam.evaluation.runner import evaluate
    from coam.progress import progress

    chosen = {name: values[name] for name in ("limit", "workers", "resume") if name in values}
    total = min(len(loaded), values["limit"] or len(loaded))
    with progress(f"{benchmark.name}: {spec.name}", total, unit="pairs") as bar:
        report = evaluate(
            benchmark,
            loaded,
            spec,
            folder,
            settings=settings,
            options=options,
            progress=bar.advance,
            **chosen,
        )
    write_reports(benchmark, loaded, report, folder)
    return report


def _print_report(report: Report, folder: Path, as_json: bool) -> None:
    from coam.evaluation.metrics.tables import json_ready
    from coam.evaluation.reports.text import table_text

    if as_json:
        say(json.dumps({"output": str(folder), "tables": json_ready(report["tables"])}))
    else:
        say(f"{table_text(report)}\nwrote {folder / 'report.html'}")


def load_data(benchmark: Benchmark, values: dict[str, Any]) -> Any:
    """What the benchmark's `load` finds below --root."""
    root = values["root"]
    try:
        loaded = benchmark.load(root, **{option.name: values[option.name] for option in benchmark.options})
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = error.filename or root
        raise DataError(f"{missing} is not there; give --root the folder of the data") from error
    if benchmark.run is None and not loaded:
        raise DataError(f"{root} holds no pair for {benchmark.name}; check --root and the other options")
    return loaded


def _print_side_by_side(benchmark: Benchmark, reports: list[Report], folder: Path, as_json: bool) -> None:
    """Print the table of all matchers and keep it as side_by_side.md and .json in `folder`."""
    from coam.evaluation.metrics.tables import json_ready
    from coam.evaluation.reports.side_by_side import side_by_side, side_by_side_text
    from coam.evaluation.runner import write_json
    from coam.store.atomic import write_text

    table = side_by_side(benchmark, reports)
    text = side_by_side_text(table)
    write_json(folder / "side_by_side.json", table)
    write_text(folder / "side_by_side.md", text + "\n")
    say(json.dumps(json_ready(table)) if as_json else f"{text}\nwrote {folder / 'side_by_side.md'}")


def compare(
    a: Annotated[Path, typer.Argument(help="Folder (or report.json) of one evaluation.")],
    b: Annotated[Path, typer.Argument(help="The other one, of the same benchmark.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for compare.html and .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as one JSON object.")] = False,
) -> None:
    """Is B better than A? Paired bootstrap on the pairs that both have seen."""
    from coam.evaluation.metrics.tables import json_ready
    from coam.evaluation.reports.compare import compare_reports, comparison_text, write_comparison
    from coam.evaluation.runner import read_report

    first, second = read_report(a), read_report(b)
    comparison = compare_reports(find_benchmark(first["benchmark"]), first, second)
    if output is not None:
        write_comparison(comparison, output)
    say(json.dumps(json_ready(comparison)) if as_json else comparison_text(comparison))


def matcher_of(name: str, values: dict[str, Any]) -> MatcherSpec:
    """The matcher of that name with the options of a command."""
    from coam.evaluation.matchers.by_name import find_matcher

    named = ("resolution", "max_matches", "preset", "keypoints")
    options = {option: values.get(option) for option in named}
    options |= _parse_assignments(values["settings_of_matcher"] or [])
    require_trained(name, values["allow_untrained"])
    spec = find_matcher(name, device=values["device"], **options)
    if spec.config.get("trained") is False:
        say(f"warning: {name} is untrained, so its figures mean nothing", err=True)
    return spec


def _parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """KEY=VALUE, where VALUE is a number, true, false, null or a word."""
    from coam.store.documents import parse_json

    options: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set {assignment}: wanted KEY=VALUE, for example --set grid=256")
        try:
            options[key.replace("-", "_")] = parse_json(value)
        except ValueError:
            options[key.replace("-", "_")] = value
    return options


def _settings(benchmark: Benchmark, values: dict[str, Any]) -> dict[str, Any]:
    """What the command line says about the scoring."""
    from coam.geometry.ransacs import ESTIMATORS

    check_choice("--estimator", values.get("estimator"), ESTIMATORS)
    return {name: values[name] for name in benchmark.settings if values.get(name) is not None}
