"""`coam demo`: the first thing to try. Matches the bundled real pair and says how many matches are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coam.cli.match import print_summary, summarise
from coam.cli.options import AsJson, Device
from coam.cli.outputs import check_outputs, match_endings, write_matches
from coam.cli.printing import say

if TYPE_CHECKING:
    from coam.samples import StereoSample
    from coam.types import Matches

THRESHOLDS = (1.0, 3.0)  # pixels


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write; endings as in coam match.")
    ] = Path("demo.png"),
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Match a bundled pair of photos, write the picture, and compare with the true disparity."""
    outputs = check_outputs([output], [], match_endings())

    from coam import samples
    from coam.matcher import load_matcher

    pair = samples.motorcycle()
    matcher = load_matcher(device=device)
    matches = matcher.match(pair.left, pair.right)
    accuracy = accuracy_against(pair, matches)
    write_matches(matches, outputs, ("left", "right"))
    summary = summarise(matches, pair.left.name, pair.right.name, outputs, str(matcher.device))
    if as_json:
        say(json.dumps(summary | {"accuracy": accuracy}))
        return
    print_summary(summary, as_json=False)
    shares = " and ".join(f"{accuracy[f'{limit:g}px']:.1%} within {limit:g} px" for limit in THRESHOLDS)
    say(f"of the {accuracy['checked']:.0f} matches whose truth is known, {shares}")


def accuracy_against(pair: StereoSample, matches: Matches) -> dict[str, float]:
    """How many matches could be checked against the true disparity, and the share within each threshold."""
    import numpy as np

    truth, known = pair.true_points1(matches.points0)
    errors = np.linalg.norm(matches.points1[known] - truth[known], axis=1)
    shares = {f"{limit:g}px": float((errors <= limit).mean()) if len(errors) else 0.0 for limit in THRESHOLDS}
    return {"checked": len(errors)} | shares
