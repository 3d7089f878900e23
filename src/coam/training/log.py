"""The log of a run, and its curves."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coam.errors import CoamError, DataError
from coam.store.atomic import write_text
from coam.store.documents import Whole, check_shape, parse_json, read_text

if TYPE_CHECKING:
    from PIL import Image


Report = Callable[[dict[str, float]], None]


class RunLog:
    """One JSON line every few steps, to a file and to a callback."""

    def __init__(self, path: Path, device: torch.device, report: Report | None, writes: bool = True) -> None:
        """`writes`: False in all processes of a run but the first."""
        self.path, self.cuda, self.report, self.writes = path, device.type == "cuda", report, writes
        self.start, self.pairs = time.perf_counter(), 0  # since the last line

    def write(self, figures: dict[str, Tensor], step: int, progress: float | None) -> dict[str, float]:
        """The line of a step; only now the device is waited for."""
        values = torch.stack([value.float() for value in figures.values()]).tolist()
        line = {"step": float(step), **dict(zip(figures, values, strict=True))}
        if progress is not None:
            line["progress"] = progress
        if self.cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        line["pairs_per_second"] = self.pairs / (now - self.start)
        self.start, self.pairs = now, 0
        if self.writes:
            with self.path.open("a") as file:
                file.write(json.dumps({key: round(value, 6) for key, value in line.items()}) + "\n")
            if self.report is not None:
                self.report(line)
        return line


def print_line(line: dict[str, float]) -> None:
    """A log line for people, on stderr."""
    shown = {key: value for key, value in line.items() if key not in ("step", "pairs_per_second")}
    figures = "  ".join(f"{key} {value:.4f}" for key, value in shown.items())
    memory = f"  {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if torch.cuda.is_available() else ""
    rate = f"{line['pairs_per_second']:.1f} pairs/s"
    print(f"step {line['step']:6.0f}  {figures}  {rate}{memory}", file=sys.stderr, flush=True)


def read_log(path: Path) -> list[dict[str, float]]:
    """All lines of a log; one that was damaged, or cut short by a kill, is left out."""
    lines = []
    for text in read_text(path, "remove it").splitlines():
        with suppress(ValueError):
            line = parse_json(text)
            check_shape(line, Whole(step=float))
            check_shape(line, {str: float})
            lines.append(line)
    return lines


def drop_lines_after(path: Path, step: int) -> None:
    """Leave out what was logged after `step`: these steps are taken again."""
    if path.exists():
        lines = [line for line in read_log(path) if line["step"] <= step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def check_finite(line: dict[str, float], checkpoint: Path) -> None:
    """Stop before a broken step is saved."""
    if math.isfinite(line["loss"]) and math.isfinite(line["gradient"]):
        return
    saved = f"; {checkpoint} holds the last good step" if checkpoint.exists() else ""
    raise CoamError(f"the loss is not finite at step {line['step']:.0f}; try a lower learning rate{saved}")


def draw_log(lines: list[dict[str, float]], title: str = "") -> Image.Image:
    """Two pictures in one: the loss, and the share of right matches (of a stylizer: L1), over the steps."""
    from PIL import Image

    from coam.viz.curves import draw_curves

    if not lines:
        raise DataError("the log is empty, so there is nothing to plot")
    steps = [line["step"] for line in lines]
    above = draw_curves(
        {"loss": (steps, [line["loss"] for line in lines])}, x_label="step", y_label="loss", title=title
    )
    if "accuracy" in lines[0]:
        curves = {"right matches": (steps, [line["accuracy"] for line in lines])}
        below = draw_curves(curves, x_label="step", y_label="share of right matches", y_range=(0.0, 1.0))
    else:
        stages = [name for name in ("sampled", "stage1", "stage2") if name in lines[-1]]
        curves = {name: (steps, [line.get(name, math.nan) for line in lines]) for name in stages}
        below = draw_curves(curves, x_label="step", y_label="L1")
    picture = Image.new("RGB", (above.width, above.height + below.height), "white")
    picture.paste(above, (0, 0))
    picture.paste(below, (0, above.height))
    return picture
