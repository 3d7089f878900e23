"""`coam match --pairs FILE -o DIR`, `coam match DIR_A DIR_B -o DIR`: many pairs, one file of matches each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coam.cli.outputs import match_endings, write_matches
from coam.cli.printing import say
from coam.errors import ConfigError, DataError, printable

if TYPE_CHECKING:
    from coam.batch import PairResult, PhotoPair

SHOWN = 20  # pairs in the table


def is_many(pairs: Path | None, *places: Path | None) -> bool:
    """Whether what was given is more than two photos."""
    from coam.images.folder import is_video

    return pairs is not None or any(place and (place.is_dir() or is_video(place)) for place in places)


def wanted_pairs(
    pairs: Path | None, first: Path | None, second: Path | None, folder: Path, frames: int | None
) -> list[PhotoPair]:
    """The pairs of a list, or of a folder, photo or video against another; frames go to `folder`/frames."""
    from coam.batch import pairs_between, photos_of, read_pair_list
    from coam.images.video import FrameOptions

    if pairs is not None:
        if first is not None:
            raise ConfigError("give either --pairs FILE, or A and B")
        return read_pair_list(pairs)
    assert first is not None
    if second is None:
        raise ConfigError("B is missing; give two photos, two folders, or --pairs FILE")
    options = FrameOptions() if frames is None else FrameOptions(most=frames)
    for place in (first, second):
        if not place.exists():
            raise DataError(f"{place}: no such file or folder; check the path")
    found0 = photos_of(first, folder / "frames" / "A", options, shown=True)
    same = first.resolve() == second.resolve()
    found1 = found0 if same else photos_of(second, folder / "frames" / "B", options, shown=True)
    wanted = pairs_between(found0, found1)
    if not wanted:
        raise DataError(f"{first}: gives no pair of different photos with {second}; give more photos")
    return wanted


def check_folder_output(outputs: Sequence[Path], also: Sequence[str]) -> tuple[Path, list[str]]:
    """The one folder for the results of many pairs, and the endings of files beside the .npz."""
    from coam.store.atomic import check_folder

    if len(outputs) != 1:
        raise ConfigError("many pairs are given; say which folder their results go to: -o DIR")
    folder = outputs[0]
    if folder.suffix.lower() in match_endings() and not folder.is_dir():
        raise ConfigError(f"{folder}: is the name of a file; many pairs need a folder (and --also png)")
    check_folder(folder)
    endings = [f".{ending.lower().lstrip('.')}" for ending in also]
    known = [ending for ending in match_endings() if ending != ".npz"]
    for ending in endings:
        if ending not in known:
            choices = ", ".join(name.lstrip(".") for name in known)
            raise ConfigError(f"--also {ending.lstrip('.')}: choose of {choices}")
    return folder, list(dict.fromkeys(endings))


def match_many(
    matcher: Any,
    wanted: Sequence[PhotoPair],
    folder: Path,
    also: Sequence[str],
    tiles: dict[str, Any] | None,
    min_overlap: float | None,
    as_json: bool,
) -> None:
    """Match, print what came of it; leave with 1 where a pair falls short of `min_overlap`.

    tiles: options of `Matcher.match_tiles` where large photos are matched tile by tile.
    """
    from coam.batch import match_files

    def match_all(pairs: Any) -> Any:
        return (matcher.match_tiles(first, second, **(tiles or {})) for first, second in pairs)

    try:
        results = match_files(
            matcher,
            wanted,
            folder,
            None if tiles is None else match_all,
            also,
            write_matches,
            shown=True,
        )
    except KeyboardInterrupt as error:
        from coam.cli import INTERRUPTED, fail

        fail("stopped; run the same line again to go on", INTERRUPTED, error)
    short = [result for result in results if is_short(result, min_overlap)]
    print_results(results, folder, as_json)
    if short and min_overlap is not None:
        line = f"{len(short)} of {len(results)} pairs have an overlap below {min_overlap:g}, or none"
        say(line, err=True)
        raise typer.Exit(1)


def is_short(result: PairResult, min_overlap: float | None) -> bool:
    """Whether a pair does not reach the overlap that is asked for; an unknown one does not."""
    return min_overlap is not None and (result.overlap is None or result.overlap < min_overlap)


def print_results(results: Sequence[PairResult], folder: Path, as_json: bool) -> None:
    """One JSON object, or a table of the best pairs and a line with the counts."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from coam.batch.match_files import SUMMARY
    from coam.types import SAME_PLACE

    failed = [result for result in results if result.error]
    same = sum(result.overlap is not None and result.overlap >= SAME_PLACE for result in results)
    reused = sum(result.reused for result in results)
    if as_json:
        counts = {"pairs": len(results), "reused": reused, "same_place": same, "failed": len(failed)}
        content = {"output": str(folder), **counts, "results": [asdict(result) for result in results]}
        say(json.dumps(content))
        return
    for line in dict.fromkeys(result.error for result in failed):
        say(f"left out: {line}", err=True)
    console = Console(highlight=False, soft_wrap=True)
    best = sorted(
        (result for result in results if not result.error), key=lambda r: (-(r.overlap or 0), -r.matches)
    )
    table = Table("A", "B", box=None, pad_edge=False)
    table.add_column("matches", justify="right")
    table.add_column("overlap", justify="right")
    for result in best[:SHOWN]:
        overlap = "" if result.overlap is None else f"{result.overlap:.2f}"
        names = (Text(printable(name)) for name in (result.image0, result.image1))
        table.add_row(*names, f"{result.matches:,}", overlap)
    console.print(table)
    if len(best) > SHOWN:
        console.print(f"... and {len(best) - SHOWN} more")
    parts = [f"{len(results)} pairs", f"{same} of the same place"]
    parts += [f"{reused} matched before"] if reused else []
    parts += [f"{len(failed)} left out"] if failed else []
    console.print(", ".join(parts))
    console.print(Text(printable(f"wrote {folder} ({SUMMARY} lists the pairs)")))
