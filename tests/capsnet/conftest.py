"""Posed pairs in every form that a source reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from coam import samples
from coam.data.pack_rgbd import pack_rgbd
from coam.data.pack_tracks import TrackScene, pack_tracks
from support.posed_views import write_list
from support.rgbd_frames import write_frames


@pytest.fixture(scope="session")
def posed_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rgbd.safetensors, tracks.safetensors and the folder listed/."""
    folder = tmp_path_factory.mktemp("posed")
    write_frames(folder / "frames")
    pack_rgbd(folder / "frames", folder / "rgbd.safetensors", "toy")
    courtyard = samples.courtyard()
    scene = TrackScene("court", courtyard.model_dir, courtyard.image_dir)
    pack_tracks([scene], folder / "tracks.safetensors", max_side=320)
    (folder / "listed").mkdir()
    write_list(folder / "listed")
    return folder
