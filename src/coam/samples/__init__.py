"""Bundled samples: a real stereo pair and a rendered place, both with truth; two real pairs without.

    from coam import samples
    pair = samples.motorcycle()
    coam.match(pair.left, pair.right)
    yard = samples.courtyard()
    coam.match(yard.image("day_04"), yard.image("night_02"))
    coam.match(*samples.town())

Nothing is read before it is asked for. Origin and licence: README.md in this folder.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from coam.errors import DataError
from coam.samples.multiview import CourtyardSample
from coam.samples.stereo import StereoSample

__all__ = ["CourtyardSample", "StereoSample", "box", "courtyard", "motorcycle", "town"]


def _folder(name: str) -> Path:
    folder = Path(str(resources.files("coam.samples") / name))
    if not folder.is_dir():
        raise DataError(f"the bundled sample '{name}' is missing from this installation; reinstall coam")
    return folder


def motorcycle() -> StereoSample:
    """The Middlebury 2014 motorcycle: a real rectified pair, 741x500, with true disparity."""
    return StereoSample(_folder("motorcycle"))


def courtyard() -> CourtyardSample:
    """A rendered courtyard: 12 day and 4 night views, 640x480, exact cameras, true depth for four of them."""
    return CourtyardSample(_folder("courtyard"))


def town() -> tuple[Path, Path]:
    """A town from a plane, twice, from different sides: real photos, 640x480, no truth."""
    folder = _folder("opencv")
    return folder / "aero1.jpg", folder / "aero3.jpg"


def box() -> tuple[Path, Path]:
    """A printed box alone (324x223), and small, turned, half hidden in a heap (512x384): real, no truth."""
    folder = _folder("opencv")
    return folder / "box.jpg", folder / "box_in_scene.jpg"
