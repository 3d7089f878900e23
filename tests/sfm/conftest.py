from __future__ import annotations

import numpy as np
import pytest
from toy_scene import OracleMatcher, Scene

from coam.sfm.pipeline import SfmOptions, run_sfm


@pytest.fixture(scope="session")
def scene() -> Scene:
    return Scene(count=7, size=(400, 304), focal=380.0)


@pytest.fixture(scope="session")
def truth(scene):
    return {name: (scene.rotations[i], scene.translations[i]) for i, name in enumerate(scene.names)}


@pytest.fixture(scope="session")
def photos(scene, tmp_path_factory):
    """Five photos of the scene to build from; `queries` has the other two."""
    folder = scene.write_photos(tmp_path_factory.mktemp("photos"))
    for name in ("view02.png", "view05.png"):
        (folder / name).unlink()
    return folder


@pytest.fixture(scope="session")
def queries(scene, tmp_path_factory):
    folder = scene.write_photos(tmp_path_factory.mktemp("queries"))
    for name in scene.names:
        if name not in ("view02.png", "view05.png"):
            (folder / name).unlink()
    (folder / "broken.jpg").write_bytes(b"this is no picture")
    return folder


@pytest.fixture(scope="session")
def matcher(scene):
    return OracleMatcher(scene, keep=0.4)


@pytest.fixture(scope="session")
def built(photos, matcher, tmp_path_factory):
    """A finished model folder and its summary."""
    folder = tmp_path_factory.mktemp("model")
    lines: list[str] = []
    summary = run_sfm(photos, folder, matcher, SfmOptions(tracks="refined"), lines.append)
    return folder, summary, np.array(lines, dtype=object)
