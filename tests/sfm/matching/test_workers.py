"""One worker, many workers, a killed worker: the same matches."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from coam.errors import ConfigError
from coam.sfm.matching.match_pairs import match_pairs
from coam.sfm.matching.workers import match_on_processes, match_on_ray
from coam.sfm.pairs import exhaustive_pairs
from coam.sfm.photos import read_photo_folder
from support import REPOSITORY, TESTS
from support.toy_scene import OracleMatcher, Scene


class MortalMatcher(OracleMatcher):
    """Kills its own process once, in the middle of the work, when the file `fuse` is there."""

    fuse: Path | None = None

    def match(self, image0, image1, keypoints0=None):
        if self.fuse is not None and self.fuse.exists() and self.index(image1) == 3:
            self.fuse.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().match(image0, image1, keypoints0)


def load(fuse: Path | None = None, delay: float = 0.0) -> MortalMatcher:
    matcher = MortalMatcher(Scene(count=7, size=(160, 120), focal=150.0), keep=0.4)
    matcher.fuse = fuse
    time.sleep(delay)
    return matcher


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return read_photo_folder(
        Scene(count=7, size=(160, 120), focal=150.0).write_photos(tmp_path_factory.mktemp("p"))
    )


@pytest.fixture(scope="module")
def alone(small, tmp_path_factory):
    """What one process gives."""
    pairs = exhaustive_pairs(small.names)
    return match_pairs(load(), small, pairs, tmp_path_factory.mktemp("alone") / "m.h5")


def assert_same(one, other):
    assert one.pairs() == other.pairs()
    for pair in one.pairs():
        a, b = one.read(pair), other.read(pair)
        assert a.stamp == b.stamp
        for name in a.columns:
            np.testing.assert_array_equal(a.columns[name], b.columns[name])


def test_a_killed_worker_changes_nothing(small, alone, tmp_path):
    fuse = tmp_path / "fuse"
    fuse.touch()
    pairs = exhaustive_pairs(small.names)
    journal = match_on_processes(
        small, pairs, tmp_path / "m.h5", partial(load, fuse), workers=2, chunk_pairs=3
    )
    assert not fuse.exists()  # it did die
    assert_same(alone, journal)


def test_workers_take_turns_on_the_gpus(monkeypatch):
    import torch

    from coam.sfm.matching import workers

    used = []
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(workers, "_matcher", None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    for gpus in (0, 1, 3):
        started = get_context("spawn").Value("i", 0)
        for _ in range(5):
            workers._start_worker(load, 1, started, gpus)
        assert started.value == 5
    assert used == [0, 1, 2, 0, 1]  # with three; one GPU needs no choice


def test_more_gpus_than_the_cluster_has_is_one_line():
    from coam.sfm.matching.workers import _require_gpus

    _require_gpus(1.0, 4, 0.25)
    _require_gpus(0.0, 4, 0.0)
    with pytest.raises(ConfigError, match=r"4 workers with 0\.5 GPUs each need 2, the Ray cluster has 1;"):
        _require_gpus(1.0, 4, 0.5)


def test_gpus_per_worker_reach_ray():
    from coam.cli.sfm import spread

    assert spread(load, 4, "local", 0.25, False).keywords["gpus_per_worker"] == 0.25
    assert spread(load, 1, None, 0.0, False) is None
    with pytest.raises(ConfigError, match="--gpus-per-worker is for --ray"):
        spread(load, 4, None, 1.0, False)


@pytest.mark.slow
def test_four_workers(small, alone, tmp_path):
    journal = match_on_processes(
        small, exhaustive_pairs(small.names), tmp_path / "m.h5", load, 4, chunk_pairs=2
    )
    assert_same(alone, journal)


@pytest.mark.slow
def test_local_ray_cluster_with_one_worker_killed(small, alone, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    # Ray's workers must be able to import the toy matcher
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(REPOSITORY / "src")]))
    fuse = tmp_path / "fuse"
    fuse.touch()
    journal = match_on_ray(
        small,
        exhaustive_pairs(small.names),
        tmp_path / "m.h5",
        partial(load, fuse),
        "local",
        workers=2,
        chunk_pairs=3,
    )
    assert not fuse.exists()
    assert not ray.is_initialized()
    assert_same(alone, journal)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "ray"])
def test_the_shipped_model_gives_the_same_matches_everywhere(where, tmp_path):
    """Four small real pictures, six pairs, the network itself: one process against two workers."""
    import shutil

    from coam.cli.sfm import load_for_sfm
    from coam.samples import courtyard

    photos = tmp_path / "photos"
    photos.mkdir()
    for path in courtyard().day[2:6]:
        shutil.copy(path, photos / path.name)
    folder = read_photo_folder(photos)
    load_shipped = partial(load_for_sfm, None, "cpu", {"resolution": 256, "max_matches": 512})
    pairs = exhaustive_pairs(folder.names)
    alone = match_pairs(load_shipped(), folder, pairs, tmp_path / "alone.h5")
    if where == "ray":
        pytest.importorskip("ray")
        spread = match_on_ray(
            folder, pairs, tmp_path / "ray.h5", load_shipped, "local", workers=2, chunk_pairs=2
        )
    else:
        spread = match_on_processes(
            folder, pairs, tmp_path / "two.h5", load_shipped, workers=2, chunk_pairs=2
        )
    assert_same(alone, spread)
    assert min(len(alone.read(pair).columns["ids0"]) for pair in pairs) > 100
