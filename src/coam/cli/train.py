"""`coam train`: a model by a recipe, or the shipped model fine-tuned on a folder of photos."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coam.cli.options import AsJson
from coam.cli.printing import say
from coam.errors import ConfigError

if TYPE_CHECKING:
    from coam.stylization.recipe import StylizeRecipe
    from coam.training.finetune import FineTuned

MINUTES_FOR_PHOTOS = 5.0
SECONDS_BETWEEN_PLOTS = 20.0  # drawing takes half a second
Report = Callable[[dict[str, float]], None]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train)


def train(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="Folder for the run.")],
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A recipe's name, or a .yaml file.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="ROOT", help="Folder that the recipe's paths start from.")
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead of a recipe: fine-tune on these photos.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Stop after so long; for --photos 5 unless given.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --photos: the model to start from, or a .safetensors file.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    devices: Annotated[int, typer.Option(min=1, help="With a recipe: train on so many together.")] = 1,
    download: Annotated[
        bool,
        typer.Option("--download", help="The encoder's public weights may be fetched if they are not here."),
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw RUN/curve.png, again and again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model. Run the same line again to go on where a run was stopped."""
    if (recipe is None) == (photos is None):
        raise ConfigError("give either a RECIPE with --data ROOT, or --photos DIR")
    if photos is not None and (data is not None or devices != 1):
        raise ConfigError("--data and --devices belong to a RECIPE, not to --photos")
    if recipe is not None and model is not None:
        raise ConfigError("--model belongs to --photos; a recipe names its own start (model.start)")

    from coam.store.atomic import check_folder
    from coam.training.stopping import Stopped

    summary: dict[str, Any] | None
    check_folder(output)  # before minutes are spent on reading photos
    try:
        if photos is not None:
            summary = _on_photos(photos, output, minutes or MINUTES_FOR_PHOTOS, model, device, plot)
        else:
            assert recipe is not None
            summary = _by_recipe(recipe, data, output, minutes or math.inf, device, devices, plot, download)
    except Stopped as stopped:
        if stopped.first_process:
            say(str(stopped), err=True)
        raise typer.Exit(128 + stopped.number) from stopped
    if summary is None:  # a further process of a run on several devices
        return
    if plot:
        summary["plot"] = str(_plot(output))
    _print(summary, as_json)


def _by_recipe(
    name: str,
    data: Path | None,
    output: Path,
    minutes: float,
    device: str,
    devices: int,
    plot: bool,
    download: bool,
) -> dict[str, Any] | None:
    """What a recipe of either kind trains: a matcher or the stylizer."""
    from coam.stylization.recipe import is_stylizer_recipe, load_stylize_recipe
    from coam.training.config import load_recipe
    from coam.training.run import run_recipe

    of_stylizer = is_stylizer_recipe(name)
    if data is None:
        raise ConfigError("--data is missing: the folder that the recipe's paths start from")
    if of_stylizer:
        return _stylizer(load_stylize_recipe(name), data, output, minutes, device, devices, plot)
    recipe = load_recipe(name)
    with progress_bar() as (begin, report):
        begin(recipe.steps)
        shown = _plotting(report, output, plot)
        outcome = run_recipe(recipe, data, output, minutes, shown, device, devices, download)
    if not outcome.first_process:
        return None
    summary = _summary(output, outcome.step, recipe.steps, outcome.seconds, outcome.taken)
    if outcome.taken == 0:
        summary["more"] = f"another -o, and a recipe with model: {{start: {summary['model']}}}"
    return summary


def _stylizer(
    recipe: StylizeRecipe, data: Path, output: Path, minutes: float, device: str, devices: int, plot: bool
) -> dict[str, Any]:
    from coam.stylization.train import train_stylizer
    from coam.training.log import print_line

    if devices != 1:
        raise ConfigError("the stylizer trains on one device; leave --devices out")
    outcome = train_stylizer(recipe, data, output, minutes, device, _plotting(print_line, output, plot))
    summary = _summary(output, outcome.step, recipe.steps, outcome.seconds)
    next_command = f"coam stylize VIEW.jpg STYLE.jpg -o out.png --weights {summary['model']}"
    return {**summary, "finished": True, "next": next_command}


def _on_photos(
    photos: Path, output: Path, minutes: float, model: str | None, device: str, plot: bool
) -> dict[str, Any]:
    from coam.training.finetune import finetune_photos

    with progress_bar() as (begin, report):
        done = finetune_photos(
            photos,
            output,
            minutes,
            model,
            device,
            _plotting(report, output, plot),
            lambda recipe: begin(recipe.steps),
        )
    _warn(done)
    outcome = done.outcome
    summary = _summary(output, outcome.step, done.recipe.steps, outcome.seconds, outcome.taken)
    if outcome.taken == 0:
        summary["more"] = f"coam train --photos {photos} -o ANOTHER_RUN --model {summary['model']}"
    summary["photos"] = done.photos
    summary["right_before"], summary["right_after"] = round(done.before.right, 4), round(done.after.right, 4)
    summary["error_before"], summary["error_after"] = round(done.before.error, 3), round(done.after.error, 3)
    return summary


def _warn(done: FineTuned) -> None:
    if not done.trained_start:
        name = done.recipe.model.start
        say(f"warning: {name} has no trained weights here, so this began from nothing", err=True)
    if done.after.right < done.before.right:
        say("warning: the model matches new views of these photos worse than before", err=True)


def _summary(output: Path, step: int, steps: int, seconds: float, taken: int | None = None) -> dict[str, Any]:
    from coam.training.loop import LOG, MODEL

    return {
        "model": str(output / MODEL),
        "log": str(output / LOG),
        "step": step,
        "steps": steps,
        "finished": step >= steps,
        "seconds": round(seconds, 1),
    } | ({} if taken is None else {"taken": taken})


def _plot(output: Path) -> Path:
    from coam.store.atomic import atomic_write
    from coam.training.log import draw_log, read_log
    from coam.training.loop import LOG

    path = output / "curve.png"
    picture = draw_log(read_log(output / LOG), output.name)
    with atomic_write(path) as temporary:
        picture.save(temporary)
    return path


def _plotting(report: Report, output: Path, plot: bool) -> Report:
    """`report`, and, if wanted, the curve drawn anew now and then, to be looked at while it trains."""
    if not plot:
        return report
    drawn_at = -math.inf

    def report_and_draw(line: dict[str, float]) -> None:
        nonlocal drawn_at
        report(line)
        if time.monotonic() - drawn_at > SECONDS_BETWEEN_PLOTS:
            _plot(output)
            drawn_at = time.monotonic()

    return report_and_draw


def _print(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say(json.dumps(summary))
        return
    if summary.get("taken") == 0:
        say(f"this run is complete: all {summary['steps']} steps were taken before, none were added")
        say(f"for more: {summary['more']}")
    else:
        say(f"{summary['step']} of {summary['steps']} steps in {summary['seconds']:.0f} s")
    if "right_before" in summary:
        say(
            f"new views of the {summary['photos']} photos: right matches {summary['right_before']:.3f}"
            f" before, {summary['right_after']:.3f} after; off by {summary['error_before']:.2f} px before,"
            f" {summary['error_after']:.2f} px after"
        )
    if not summary["finished"]:
        say("the time was over before the last step; run the same line again to go on")
    for key in ("model", "log", "plot"):
        if key in summary:
            say(f"wrote {summary[key]}")
    say(f"next: {summary.get('next') or 'coam match A.jpg B.jpg --model ' + summary['model']}")


@contextmanager
def progress_bar() -> Iterator[tuple[Callable[[int], None], Report]]:
    """A bar on stderr as two functions: one to begin with so many steps, one that takes lines of the log."""
    from coam.progress import progress

    with progress("preparing", unit="steps") as bar:

        def begin(steps: int) -> None:
            bar.begin("training", steps)

        def report(line: dict[str, float]) -> None:
            figures = f"loss {line['loss']:.2f}  right {line['accuracy']:.2f}"
            figures += f"  {line['pairs_per_second']:.1f} pairs/s"
            bar.update(int(line["step"]), figures)

        yield begin, report
