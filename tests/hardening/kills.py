"""Runs that are killed at any moment, again and again: they end like an undisturbed one, and lose little.

Each run is a forked process that gets SIGKILL after a random time, and is started again on what it left,
until one comes to its end. What it then has is compared byte by byte with the result of a run that nobody
killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coam.sfm.pipeline import run_sfm
from coam.store.checksums import content_digest, folder_digests
from coam.types import Matches
from coam.warp import Warp
from hardening.attempts import in_child
from hardening.models import OPTIONS, toy_scene
from support import tiny
from support.toy_pictures import write_photos
from support.toy_scene import OracleMatcher

HEAD = (
    "| run | kills | ended | other results | errors | leftovers | done twice |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)
PATIENCE = 600.0  # seconds for one run that nobody kills


@dataclass(frozen=True)
class Work:
    """Something long that resumes. `run(folder, log)` adds a line to `log` for every unit of work it does."""

    name: str
    run: Callable[[Path, Path], None]
    results: Callable[[Path], dict[str, str]]  # digests of what must be the same
    units: str  # what is counted


@dataclass
class Tally:
    """What killing came to."""

    name: str
    units: str
    kills: int = 0
    ended: int = 0  # runs that came to their end
    needed: int = 0  # units of work of an undisturbed run
    done: int = 0  # units that were done, per run that came to its end, added up
    different: list[str] = field(default_factory=list)  # results that are not those of the undisturbed run
    failed: list[str] = field(default_factory=list)  # runs that ended with an error
    left: list[str] = field(default_factory=list)  # temporary files in the end

    @property
    def is_whole(self) -> bool:
        return not (self.different or self.failed or self.left)

    def __str__(self) -> str:
        """A line of the table whose head is `HEAD`."""
        twice = self.done - self.ended * self.needed
        return (
            f"| {self.name} | {self.kills} | {self.ended} | {len(self.different)} | {len(self.failed)} "
            f"| {len(self.left)} | {twice} of {self.done} {self.units} |"
        )


class _CountedMatcher(OracleMatcher):
    """Writes down every pair that it matches."""

    log: Path

    def match(self, image0: object, image1: object, keypoints0: object = None) -> Matches:
        _note(self.log, "pair")
        return super().match(image0, image1, keypoints0)  # type: ignore[arg-type]

    @property
    def fingerprint(self) -> str:
        return "oracle"


def _note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(line + "\n")


def reconstruction(photos: Path) -> Work:
    """Matching, verification, tracks and mapping of a small scene, and the files of its model."""
    scene = toy_scene()
    if not photos.exists():
        scene.write_photos(photos)

    def run(folder: Path, log: Path) -> None:
        matcher = _CountedMatcher(scene, keep=0.4)
        matcher.log = log
        run_sfm(photos, folder, matcher, OPTIONS)

    def results(folder: Path) -> dict[str, str]:
        return folder_digests(folder, [folder / "sparse", folder / "keypoints.h5", folder / "model.html"])

    return Work("reconstruction", run, results, "pairs")


def dense_points(model: Path, photos: Path) -> Work:
    """Warps, depth maps and points of a finished model of a small scene, and their file."""
    scene = toy_scene()
    if not model.exists():
        scene.write_photos(photos)
        in_child(lambda: run_sfm(photos, model, OracleMatcher(scene, keep=0.4), OPTIONS))

    def run(folder: Path, log: Path) -> None:
        from coam.sfm.dense.dense_points import add_dense_points
        from sfm.dense.conftest import WarpOracle

        class Counted(WarpOracle):
            def warp(self, image0: int, image1: int, size: int | None = None) -> Warp:
                _note(log, "warp")
                return super().warp(image0, image1, size)

        if not folder.exists():
            copied = folder.with_name(f"{folder.name}-copied")
            shutil.rmtree(copied, ignore_errors=True)
            shutil.copytree(model, copied).rename(folder)
        add_dense_points(folder, photos, Counted(scene))

    def results(folder: Path) -> dict[str, str]:
        return folder_digests(folder, [folder / "sparse"])

    return Work("dense points", run, results, "warps")


def training(photos: Path) -> Work:
    """Six steps of a tiny network, saved after every second one."""
    write_photos(photos / "photos")

    def run(folder: Path, log: Path) -> None:
        from coam.training.loop import make_fabric
        from coam.training.run import train

        recipe = tiny.with_steps(6)
        train(
            recipe,
            tiny.source(photos, recipe),
            tiny.start(recipe),
            folder,
            make_fabric("cpu"),
            report=lambda line: _note(log, f"step {line['step']}"),
        )

    def results(folder: Path) -> dict[str, str]:
        from safetensors.numpy import load_file

        saved = load_file(folder / "model.safetensors")  # beside them it says how many minutes it took
        return {name: content_digest({}, {name: value}) for name, value in saved.items()}

    return Work("training", run, results, "steps")


def kill_again_and_again(work: Work, place: Path, kills: int, seed: int = 0) -> Tally:
    """Kill until there were so many kills and the run that then goes on has ended."""
    place.mkdir(parents=True, exist_ok=True)
    tally = Tally(work.name, work.units)
    began = time.monotonic()
    in_child(lambda: work.run(place / "undisturbed", place / "undisturbed.log"))
    whole = time.monotonic() - began
    truth = work.results(place / "undisturbed")
    assert truth
    tally.needed = len((place / "undisturbed.log").read_text().splitlines())
    rng = np.random.default_rng(seed)
    folder, log = place / "killed", place / "killed.log"
    while tally.kills < kills or folder.exists():
        # Near the end lie the saves: a run that has matches comes there soon.
        enough = tally.kills >= kills
        ended = _run_for(work, folder, log, PATIENCE if enough else whole * rng.uniform(0.02, 1.0), tally)
        if not ended:
            continue
        tally.ended += 1
        tally.done += len(log.read_text().splitlines())
        found = work.results(folder)
        tally.different += [name for name in truth if found.get(name) != truth[name]]
        tally.left += [str(path.name) for path in folder.rglob(".coam-*")]
        shutil.rmtree(folder)
        log.unlink()
    return tally


def _run_for(work: Work, folder: Path, log: Path, seconds: float, tally: Tally) -> bool:
    """Whether it came to its end within `seconds`; it is killed otherwise."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            work.run(folder, log)
            code = 0
        except BaseException as error:
            with suppress(OSError):
                _note(log.with_suffix(".error"), f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status != 0:
                error = log.with_suffix(".error")
                tally.failed.append(error.read_text() if error.exists() else f"status {status}")
                shutil.rmtree(folder, ignore_errors=True)
                log.unlink(missing_ok=True)
                return False
            return True
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    tally.kills += 1
    return False
