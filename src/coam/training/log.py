"""What a run tells: one JSON line every few steps, for machines, and the same to whoever watches."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coam.errors import CoamError, DataError

if TYPE_CHECKING:
    from PIL import Image


class Clock:
    """How many pairs a second; read only when asked, because reading waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.start, self.pairs = time.perf_counter(), 0

    def add(self, pairs: int) -> None:
        """Count the pairs of a step."""
        self.pairs += pairs

    def pairs_per_second(self) -> float:
        """Since the last reading."""
        if self.cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        rate = self.pairs / (now - self.start)
        self.start, self.pairs = now, 0
        return rate


def summarise(figures: dict[str, Tensor], norm: Tensor, step: int, clock: Clock) -> dict[str, float]:
    """One line of the log."""
    values = torch.stack([value.float() for value in figures.values()] + [norm.float()]).tolist()
    line = {"step": float(step), **dict(zip((*figures, "gradient"), values, strict=True))}
    line["pairs_per_second"] = clock.pairs_per_second()
    return line


def append_line(
    path: Path, line: dict[str, float], report: Callable[[dict[str, float]], None] | None
) -> None:
    """Append to the JSON-lines file and tell whoever watches."""
    with path.open("a") as file:
        file.write(json.dumps({key: round(value, 6) for key, value in line.items()}) + "\n")
    if report is not None:
        report(line)


def read_log(path: Path) -> list[dict[str, float]]:
    """All lines of a log; a last line that was cut short by a kill is left out."""
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def drop_lines_after(path: Path, step: int) -> None:
    """Leave out what was logged after `step`: these steps are taken again."""
    if not path.exists():
        return
    kept = [line for line in read_log(path) if line["step"] <= step]
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
    temporary.replace(path)


def check_finite(line: dict[str, float], checkpoint: Path) -> None:
    """Stop before a broken step is saved."""
    if math.isfinite(line["loss"]) and math.isfinite(line["gradient"]):
        return
    kept = f"; {checkpoint} holds the last good step" if checkpoint.exists() else ""
    raise CoamError(f"the loss is not finite at step {line['step']:.0f}; try a lower learning rate{kept}")


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
