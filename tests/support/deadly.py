"""Options that kill the process that reads them, once, in the middle of its work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from coam.sfm.dense.dense_points import DenseOptions
from coam.sfm.tracks.align_graph import TrackAlignOptions
from coam.sfm.verification.two_view import VerifyOptions

FUSE, SPARED = "COAM_TEST_FUSE", "COAM_TEST_SPARED"  # a file, there while nobody has died; a process id


def light(fuse: Path, monkeypatch: Any) -> None:
    """Let the next worker die. fuse: a file that is gone when one has."""
    fuse.touch()
    monkeypatch.setenv(FUSE, str(fuse))
    monkeypatch.setenv(SPARED, str(os.getpid()))


def burn() -> None:
    """SIGKILL to this process, if the fuse is lit and it is a worker."""
    fuse = Path(os.environ.get(FUSE, "/nowhere"))
    if fuse.exists() and str(os.getpid()) != os.environ[SPARED]:
        fuse.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)


class DeadlyVerifyOptions(VerifyOptions):
    """Dies between the first RANSAC of a pair and the second."""

    def __getattribute__(self, name: str) -> Any:
        if name == "seed":
            burn()
        return super().__getattribute__(name)


class DeadlyAlignOptions(TrackAlignOptions):
    """Dies in the alignment of a pair."""

    def __getattribute__(self, name: str) -> Any:
        if name == "iterations":
            burn()
        return super().__getattribute__(name)


class DeadlyDenseOptions(DenseOptions):
    """Dies when a depth map is to be made of warps."""

    def __getattribute__(self, name: str) -> Any:
        if name == "agreement":
            burn()
        return super().__getattribute__(name)
