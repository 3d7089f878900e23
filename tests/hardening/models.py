"""A finished model folder to attack: seven pictures of a room whose geometry is known."""

from __future__ import annotations

from pathlib import Path

from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions
from support.toy_scene import OracleMatcher, Scene

OPTIONS = SfmOptions(tracks="merged")


def toy_scene() -> Scene:
    return Scene(count=5, size=(320, 240), focal=300.0)


def matcher_of(scene: Scene) -> OracleMatcher:
    return OracleMatcher(scene, keep=0.4)


def make_model(folder: Path) -> Path:
    """folder/photos, and the model of them in folder/model."""
    scene = toy_scene()
    scene.write_photos(folder / "photos")
    run_sfm(folder / "photos", folder / "model", matcher_of(scene), OPTIONS)
    return folder / "model"
