"""One process, many workers, a killed worker, here and on Ray: the same results, value by value."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from coam.errors import CoamError, ConfigError, DataError
from coam.sfm.dense.dense_points import DenseOptions, add_dense_points
from coam.sfm.interchange.hloc import read_features
from coam.sfm.localization.absolute_pose import LocalizeOptions, locations_to_json
from coam.sfm.localization.localize import localize
from coam.sfm.matching.match_pairs import match_pairs
from coam.sfm.matching.orientation import find_turns
from coam.sfm.pairs import exhaustive_pairs
from coam.sfm.photos import read_photo_folder
from coam.sfm.pipeline import run_sfm
from coam.sfm.tracks.align_graph import TrackAlignOptions, align_graph
from coam.sfm.verification.two_view import VerifyOptions, verify_pairs
from coam.sfm.workers import processes
from coam.sfm.workers.choose import choose_workers
from coam.sfm.workers.pool import HERE, Task
from coam.sfm.workers.processes import Processes
from coam.sfm.workers.ray_actors import RayActors, require_gpus
from coam.sfm.workspace import SfmOptions
from coam.store.journal import PairJournal
from sfm.dense.conftest import WarpOracle
from support import REPOSITORY, TESTS
from support.deadly import DeadlyAlignOptions, DeadlyDenseOptions, DeadlyVerifyOptions, light
from support.toy_scene import OracleMatcher, Scene


@pytest.fixture
def importable(monkeypatch):
    """Ray's workers must be able to import the toys."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(REPOSITORY), str(REPOSITORY / "src")]))


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.slow)])
def two(request, importable):
    """Makes two workers, to be closed."""
    if request.param == "ray":
        pytest.importorskip("ray")
        return lambda: RayActors(2, "local")
    return lambda: Processes(2)


class MortalMatcher(OracleMatcher):
    """Kills its own process once, in the middle of the work, when the file `fuse` is there."""

    fuse: Path | None = None

    def match(self, image0, image1, keypoints0=None):
        if self.fuse is not None and self.fuse.exists() and self.index(image1) in (3, 5):
            self.fuse.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().match(image0, image1, keypoints0)


def load(fuse: Path | None = None) -> MortalMatcher:
    matcher = MortalMatcher(Scene(count=7, size=(160, 120), focal=150.0), keep=0.4)
    matcher.fuse = fuse
    return matcher


def load_warps() -> WarpOracle:
    return WarpOracle(Scene(count=6, size=(240, 184), focal=228.0))


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
        assert a.columns.keys() == b.columns.keys()
        for name in a.columns:
            np.testing.assert_array_equal(a.columns[name], b.columns[name])
        for name in a.values:
            np.testing.assert_array_equal(a.values[name], b.values[name])


def test_matching_with_a_killed_worker(small, alone, two, tmp_path):
    fuse = tmp_path / "fuse"
    fuse.touch()
    pairs = exhaustive_pairs(small.names)
    with closing(two()) as workers:
        journal = match_pairs(
            load(),
            small,
            pairs,
            tmp_path / "m.h5",
            workers=workers,
            load=partial(load, fuse),
            chunk_pairs=3,
        )
    assert not fuse.exists()  # it did die
    assert_same(alone, journal)


def test_verification_with_a_killed_worker(built, tracks, two, tmp_path, monkeypatch):
    fuse = tmp_path / "fuse"
    light(fuse, monkeypatch)
    matched, cameras = PairJournal(built[0] / "matches.h5"), tracks.cameras.by_name
    verify_pairs(matched, cameras, tmp_path / "alone.h5", VerifyOptions())
    assert fuse.exists()
    with closing(two()) as workers:
        options = DeadlyVerifyOptions()
        verify_pairs(matched, cameras, tmp_path / "two.h5", options, workers=workers, chunk_pairs=2)
    assert not fuse.exists()
    alone = PairJournal(tmp_path / "alone.h5")
    assert_same(alone, PairJournal(tmp_path / "two.h5"))
    assert len(alone) == 10
    assert min(len(alone.read(pair).columns["inliers"]) for pair in alone.pairs()) > 100


def test_alignment_of_tracks_with_a_killed_worker(tracks, two, tmp_path, monkeypatch):
    fuse = tmp_path / "fuse"
    light(fuse, monkeypatch)
    given = tracks.graph, tracks.folder.path, dict.fromkeys(tracks.graph.pairs, "stamp")
    alone = align_graph(*given, tmp_path / "alone.h5", TrackAlignOptions())
    assert fuse.exists()
    with closing(two()) as workers:
        spread = align_graph(*given, tmp_path / "two.h5", DeadlyAlignOptions(), workers, chunk_pairs=2)
    assert not fuse.exists()
    for name in ("offsets", "weights", "affine"):
        np.testing.assert_array_equal(getattr(alone.edges, name), getattr(spread.edges, name))
    assert (alone.edges.offsets != tracks.graph.edges.offsets).any(axis=1).mean() > 0.5


def test_dense_points_with_a_killed_worker(true_folder, two, tmp_path, monkeypatch):
    fuse = tmp_path / "fuse"
    light(fuse, monkeypatch)
    alone = Path(shutil.copytree(true_folder[0], tmp_path / "alone"))
    spread = Path(shutil.copytree(true_folder[0], tmp_path / "spread"))
    count = add_dense_points(alone, true_folder[1], load_warps(), options=DenseOptions())["dense_points"]
    assert fuse.exists()
    with closing(two()) as workers:
        own = load_warps()
        summary = add_dense_points(
            spread, true_folder[1], own, options=DeadlyDenseOptions(), workers=workers, load=load_warps
        )
    assert not fuse.exists()
    assert own.calls == []  # all warps came from workers
    assert summary["dense_points"] == count > 10_000
    ply = Path("sparse") / "0" / "dense.ply"
    assert (alone / ply).read_bytes() == (spread / ply).read_bytes()


def test_a_whole_reconstruction_on_two_workers(built, photos, two, tmp_path):
    """Every file that stages leave is the same, and so is the model."""
    with closing(two()) as workers:
        from coam.sfm.pipeline import reconstruct
        from coam.sfm.workspace import open_workspace

        options = SfmOptions(tracks="refined")
        work = open_workspace(photos, tmp_path, load_scene(), options, workers=workers, load=load_scene)
        summary = reconstruct(work)
    assert summary["key"] == built[1]["key"]
    for name in ("matches.h5", "verified.h5", "refined.h5"):
        assert_same(PairJournal(built[0] / name), PairJournal(tmp_path / name))
    for name in ("cameras.bin", "images.bin", "points3D.bin"):
        assert (tmp_path / "sparse/0" / name).read_bytes() == (built[0] / "sparse/0" / name).read_bytes()


def load_scene(fuse: Path | None = None) -> MortalMatcher:
    matcher = MortalMatcher(Scene(count=7, size=(400, 304), focal=380.0), keep=0.4)
    matcher.fuse = fuse
    return matcher


class Lying(MortalMatcher):
    """Knows that photo 3 of the scene lies on its side."""

    def turn_scout(self):
        return self

    def descriptors(self, photo):
        if self.fuse is not None and self.fuse.exists():
            self.fuse.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.random.default_rng(self.index(photo)).normal(size=(4, 8)).astype(np.float32)

    def evidence(self, photo0, photo1):
        found = np.ones(4, np.float32)
        found[((self.index(photo0) == 3) - (self.index(photo1) == 3)) % 4] = 30.0 + self.index(photo1)
        return found


def load_lying(fuse: Path | None = None) -> Lying:
    matcher = Lying(Scene(count=7, size=(160, 120), focal=150.0))
    matcher.fuse = fuse
    return matcher


def test_which_way_up_with_a_killed_worker(small, two, tmp_path):
    alone = find_turns(load_lying(), load_lying(), small, tmp_path / "alone")
    fuse = tmp_path / "fuse"
    fuse.touch()
    with closing(two()) as workers:
        scout, load = object(), partial(load_lying, fuse)  # the scout that is here is not asked
        turns = find_turns(scout, load_lying(), small, tmp_path / "two", workers=workers, load=load)
    assert not fuse.exists()
    assert turns == alone == {"view03.png": 3}
    for name in ("turned_descriptors.h5", "turns.h5"):
        assert_same(PairJournal(tmp_path / "alone" / name), PairJournal(tmp_path / "two" / name))


class Describing(MortalMatcher):
    """Knows which views look alike: neighbours on the arc."""

    def global_descriptor(self, image):
        angle = 0.3 * self.index(image)
        return np.array([np.cos(angle), np.sin(angle)])


def load_describing(fuse: Path | None = None) -> Describing:
    matcher = Describing(Scene(count=7, size=(400, 304), focal=380.0), keep=0.4)
    matcher.fuse = fuse
    return matcher


@pytest.mark.parametrize("neighbours", [2, 15])
def test_queries_located_with_a_killed_worker(built, queries, two, tmp_path, neighbours):
    """By retrieval, and against all photos; one of the three queries is no picture."""
    model = shutil.copytree(built[0], tmp_path / "model")
    options, photos = LocalizeOptions(neighbours=neighbours), built[1]["photos_folder"]
    given = {"photos": (built[0] / photos).resolve(), "options": options}
    alone = localize(model, queries, load_describing(), hloc=tmp_path / "alone", **given)
    fuse, matcher = tmp_path / "fuse", load_describing()
    fuse.touch()
    load = partial(load_describing, fuse)
    with closing(two()) as workers:
        spread = localize(model, queries, matcher, hloc=tmp_path / "two", workers=workers, load=load, **given)
    assert not fuse.exists()
    assert matcher.calls == []
    assert [location.name for location in spread] == ["broken.jpg", "view02.png", "view05.png"]
    assert locations_to_json(spread) == locations_to_json(alone)
    assert [location.pose is None for location in spread] == [True, False, False]
    assert {len(location.matched) for location in spread[1:]} == {min(neighbours, 5)}
    features = [read_features(tmp_path / folder / "query-features.h5") for folder in ("alone", "two")]
    for name in ("view02.png", "view05.png"):
        np.testing.assert_array_equal(features[0][name], features[1][name])


def test_the_options_ask_for_processes(photos, built, tmp_path):
    """Of the library: no matcher can be made in workers, all else is done there."""
    matcher = load_scene()
    options = SfmOptions(tracks="refined", workers=2)
    assert run_sfm(photos, tmp_path, matcher, options)["key"] == built[1]["key"]
    assert len(matcher.calls) == 10
    assert_same(PairJournal(built[0] / "refined.h5"), PairJournal(tmp_path / "refined.h5"))


def doubling(log=None):
    def work(jobs, paths):
        for job in jobs:
            if job == "bad photo":
                raise DataError("bad photo: is damaged\nthere")
            if job == "bug":
                raise ZeroDivisionError("of ours")
            yield 2 * job, os.getpid()

    return work


def never():
    raise DataError("no weights here")


def always_dying():
    os.kill(os.getpid(), signal.SIGKILL)


def test_items_are_made_jobs_when_they_are_handed_out():
    made = []

    def job(item):
        made.append(item)
        return item + 1

    results = Processes(2).run(Task(doubling, range(9), 1, job))
    first = next(results)
    assert 3 <= len(made) <= 5  # two at work, one result, and the next of who is done
    values, pids = zip(first, *results, strict=True)
    assert sorted(values) == [2 * (n + 1) for n in range(9)]
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    assert list(HERE.run(Task(doubling, range(3), 1, job))) == [(n, os.getpid()) for n in (2, 4, 6)]


def test_errors_in_workers_are_those_of_the_work(two):
    with closing(two()) as workers:
        with pytest.raises(CoamError, match="bad photo: is damaged") as raised:
            list(workers.run(Task(doubling, [1, 2, "bad photo", 3], 1)))
        assert "\n" not in str(raised.value)
        with pytest.raises(CoamError, match="no weights here"):
            list(workers.run(Task(never, [1], 1)))
        with pytest.raises(RuntimeError, match="ZeroDivisionError: of ours"):
            list(workers.run(Task(doubling, ["bug"], 1)))
        assert list(workers.run(Task(never, [], 1))) == []


def test_work_that_kills_every_worker_ends_in_one_line(two):
    with closing(two()) as workers, pytest.raises(DataError, match="6 workers died one after another"):
        list(workers.run(Task(always_dying, [1, 2, 3], 1)))


def test_workers_end_with_the_task():
    results = Processes(2).run(Task(doubling, range(20), 1))
    pids = {next(results)[1] for _ in range(6)}
    results.close()  # as when the run is stopped
    for pid in pids:
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_take_turns_on_the_gpus(monkeypatch):
    import torch

    used, hired = [], []
    monkeypatch.setattr(processes, "_Process", lambda start, gpu: hired.append(gpu))
    for gpus in (0, 1, 3):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        pool = Processes(5)
        for _ in range(5):
            pool.hire(Task(doubling, (), 1, network=True))
    assert hired == [None] * 10 + [0, 1, 2, 0, 1]  # one GPU needs no choice
    Processes(1).hire(Task(doubling, (), 1))
    assert hired[-1] is None  # no network, no GPU
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: used.append(f"{count} thread"))
    processes._prepared(doubling, 2)()
    assert used == [2, "1 thread"]


def test_more_gpus_than_the_cluster_has_is_one_line():
    require_gpus(1.0, 4, 0.25)
    require_gpus(0.0, 4, 0.0)
    with pytest.raises(ConfigError, match=r"4 workers with 0\.5 GPUs each need 2, the Ray cluster has 1;"):
        require_gpus(1.0, 4, 0.5)


def test_the_cluster_forgets_photos_that_nobody_reads_any_more():
    pytest.importorskip("ray")
    workers = RayActors(2, "local")
    pairs = [("a", "b"), ("a", "c"), ("c", "d"), ("a", "d")]
    task = Task(doubling, pairs, 2, reads=lambda pair: pair)
    assert list(workers.run(Task(doubling, (), 1))) == []  # connects to nothing
    workers._unread.update(name for pair in pairs for name in pair)
    workers._sent.update(dict.fromkeys("abcd"))
    workers.finished(task, pairs[:2])
    assert set(workers._sent) == {"a", "c", "d"}
    workers.finished(task, pairs[2:3])
    assert set(workers._sent) == {"a", "d"}
    workers.finished(task, pairs[3:])
    assert workers._sent == {}


def test_the_options_of_a_command():
    pytest.importorskip("ray")
    chosen = choose_workers(4, "local", 0.25)
    assert (chosen.count, chosen.address, chosen.gpus) == (4, "local", 0.25)
    assert choose_workers() is HERE
    assert choose_workers(3).count == 3
    with pytest.raises(ConfigError, match="--gpus-per-worker is for --ray"):
        choose_workers(4, None, 1.0)


def test_a_cluster_that_is_not_there_is_one_line():
    pytest.importorskip("ray")
    for address in ("127.0.0.1:1", "127.0.0.1:99999", "nowhere.invalid:6379"):
        with pytest.raises(CoamError, match=f"no Ray cluster at {address}; start one with"):
            list(RayActors(1, address).run(Task(doubling, [1], 1)))


@pytest.mark.slow
def test_the_shipped_model_gives_the_same_matches_everywhere(two, tmp_path):
    """Four small real pictures, six pairs, the network itself: one process against two workers."""
    from coam.cli.sfm import load_for_sfm
    from coam.samples import courtyard

    photos = tmp_path / "photos"
    photos.mkdir()
    for path in courtyard().day[2:6]:
        shutil.copy(path, photos / path.name)
    folder = read_photo_folder(photos)
    load_shipped = partial(load_for_sfm, None, "cpu", {"resolution": 256, "max_matches": 512})
    pairs, matcher = exhaustive_pairs(folder.names), load_shipped()
    alone = match_pairs(matcher, folder, pairs, tmp_path / "alone.h5")
    with closing(two()) as workers:
        spread = match_pairs(
            matcher, folder, pairs, tmp_path / "two.h5", False, workers, load_shipped, chunk_pairs=2
        )
    assert_same(alone, spread)
    assert min(len(alone.read(pair).columns["ids0"]) for pair in pairs) > 100
