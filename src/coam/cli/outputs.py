"""Output files of commands: checked before the work starts, written only when all of it has succeeded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from coam.errors import ConfigError, DataError

if TYPE_CHECKING:
    from coam.geometry.two_view_models import TwoViewModel
    from coam.types import Matches
    from coam.warp import Warp

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
PAGES = (".html",)
OVERLAYS = (*PICTURES, ".gif")
# Ends of names of what is made of the dense warp: its maps, displacements, their colours, B in A's frame
WARPS = (".warp.npz", ".flo", *(f".flow{e}" for e in PICTURES), *(f".warped{e}" for e in PICTURES))


def match_endings() -> tuple[str, ...]:
    """Endings that `write_matches` takes: pictures, pages, and every format of `coam.store.matches`."""
    from coam.store.match_formats import ENDINGS

    return PICTURES + PAGES + ENDINGS


def is_of_warp(output: Path) -> bool:
    """Whether an output of `coam match` shows the dense warp and not single matches."""
    return output.name.lower().endswith(WARPS)


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path], endings: tuple[str, ...]) -> list[Path]:
    """The outputs without repetitions, after refusing those that could not or must not be written."""
    inputs = list(inputs)
    checked: dict[str, Path] = {}
    for output in outputs:
        if output.suffix.lower() not in endings:
            known = ", ".join(endings)
            raise ConfigError(f"{output}: cannot write the ending {output.suffix!r}; use one of {known}")
        if os.path.isdir(output):
            raise DataError(f"{output}: is a folder; give the name of a file to write")
        if any(_is_same_file(output, photo) for photo in inputs):
            raise ConfigError(f"{output}: is an input; choose another name for the output")
        checked.setdefault(os.path.realpath(output), output)
    return list(checked.values())


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def write_matches(
    matches: Matches,
    outputs: list[Path],
    names: tuple[str, str],
    warp: Warp | None = None,
    model: TwoViewModel | None = None,
    overlays: Sequence[Path] = (),
) -> None:
    """Write a picture, a page, the matches or the warp, by ending: all or none.

    names: of the photos; model: pictures show its inliers; overlays: pictures of photo 1 warped onto photo 0
    by the model, which then is a homography.
    """
    from coam.store.atomic import atomic_write
    from coam.store.matches import save_matches

    with ExitStack() as stack:
        temporaries = [stack.enter_context(atomic_write(output)) for output in (*outputs, *overlays)]
        for overlay, temporary in zip(overlays, temporaries[len(outputs) :], strict=True):
            _draw_overlay(matches, model, temporary, overlay.suffix.lower())
        for output, temporary in zip(outputs, temporaries, strict=False):
            ending = output.suffix.lower()
            if warp is not None and is_of_warp(output):
                write_warp(warp, temporary)
            elif ending in PICTURES:
                matches.draw(inliers=model).save(temporary)
            elif ending in PAGES:
                from coam.viz import match_page

                temporary.write_text(match_page(matches, names=names), encoding="utf-8")
            else:
                save_matches(matches, temporary)


def _draw_overlay(matches: Matches, model: TwoViewModel | None, path: Path, ending: str) -> None:
    from coam.geometry.two_view_models import Homography
    from coam.viz import align, draw_aligned, flicker_animation

    if not isinstance(model, Homography):
        raise DataError("no overlay can be drawn: the matches determine no homography")
    pair = align(matches, homography=model)
    if ending == ".gif":
        path.write_bytes(flicker_animation(pair))
    else:
        draw_aligned(pair).save(path)


def write_warp(warp: Warp, path: Path) -> None:
    """Write `path`, whose name ends as one of `WARPS`: data, the colours of the flow, or B in A's frame."""
    if path.suffix.lower() not in PICTURES:
        warp.save(path)
    elif path.stem.lower().endswith(".flow"):
        warp.draw().save(path)
    else:
        from PIL import Image

        from coam.warp.field import CERTAIN

        Image.fromarray(warp.apply(min_certainty=CERTAIN)).save(path)
