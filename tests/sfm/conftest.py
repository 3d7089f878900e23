from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from coam.sfm.cameras import CameraChoice, PhotoCameras, make_cameras
from coam.sfm.interchange.colmap import write_database
from coam.sfm.photos import PhotoFolder, read_photo_folder
from coam.sfm.pipeline import run_sfm
from coam.sfm.tracks.match_graph import Keypoints, MatchGraph, build_graph, place_keypoints
from coam.sfm.tracks.merge import MergeOptions
from coam.sfm.verification.two_view import VerifiedMatches, verify_pairs
from coam.sfm.workspace import SfmOptions
from coam.store.journal import PairJournal
from support.toy_scene import OracleMatcher, Scene


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


class Tracks(NamedTuple):
    """What the database of the finished model is made from."""

    folder: PhotoFolder
    cameras: PhotoCameras
    verified: VerifiedMatches
    graph: MatchGraph

    @property
    def keypoints(self) -> Keypoints:
        return self.graph.keypoints

    def write_database(self, path):
        write_database(path, self.graph, self.verified.geometries, self.cameras)
        return path


@pytest.fixture(scope="session")
def tracks(built, photos, tmp_path_factory):
    folder = read_photo_folder(photos)
    cameras = make_cameras(folder.photos, CameraChoice())
    matched = PairJournal(built[0] / "matches.h5")
    verified = verify_pairs(matched, cameras.by_name, tmp_path_factory.mktemp("tracks") / "v.h5")
    graph = place_keypoints(build_graph(folder.names, verified), MergeOptions())
    return Tracks(folder, cameras, verified, graph)
