"""Dense points of a model, from warps to the PLY: on the surface, once each, resumed after a stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.sfm.colmap_model import read_model
from coam.sfm.dense import dense_points
from coam.sfm.dense.dense_points import DenseOptions, add_dense_points
from coam.sfm.dense.depth_map import DepthMap, surface_normals
from coam.sfm.dense.fusion import DensePoints, FusionOptions, fuse
from coam.sfm.dense.ply import read_points, write_points
from coam.sfm.dense.views import neighbours_of
from coam.sfm.dense.warps import record_to_warp, warp_pairs, warp_to_record
from sfm.dense.conftest import WarpOracle, distance_to_surface, true_depth, view_of


def true_map(room, index) -> DepthMap:
    inverse = np.nan_to_num(1 / true_depth(room, index)).astype(np.float32)
    return DepthMap(inverse, surface_normals(inverse, view_of(room, index)))


@pytest.fixture(scope="module")
def maps(room):
    return {name: true_map(room, index) for index, name in enumerate(room.names)}


def fused(room, maps, **options):
    views = {name: view_of(room, index) for index, name in enumerate(room.names)}
    others = {name: [n for n in room.names if n != name] for name in room.names}
    grey = np.full((*maps[room.names[0]].inverse_depth.shape, 3), 80, np.uint8)
    return list(fuse(views, others, maps.__getitem__, lambda name: grey, FusionOptions(**options)))


def test_true_depth_maps_give_points_on_the_surface_once(room, maps):
    parts = fused(room, maps)
    points = np.concatenate([part.points for part in parts])
    assert np.quantile(distance_to_surface(room, points), 0.99) < 0.01
    pixels = sum(int(depth.known.sum()) for depth in maps.values())
    assert len(points) < 0.45 * pixels  # what three to six photos see stands once
    assert len(points) > 0.1 * pixels
    assert min(int(part.views.min()) for part in parts if len(part)) >= 3
    assert (np.concatenate([part.colours for part in parts]) == 80).all()


def test_a_wrong_depth_map_adds_nothing(room, maps):
    first = room.names[0]
    wrong = maps | {first: DepthMap(maps[first].inverse_depth * np.float32(1.1), maps[first].normals)}
    parts = fused(room, wrong)
    assert len(parts[0]) < 0.02 * maps[first].known.sum()
    points = np.concatenate([part.points for part in parts])
    assert np.quantile(distance_to_surface(room, points), 0.99) < 0.02


def test_more_photos_can_be_asked_for(room, maps):
    def count(**options):
        return sum(map(len, fused(room, maps, **options)))

    assert count(views=2) > count(views=3) > count(views=5) > 0
    assert count(angle=80.0) < 0.2 * count()


def test_ply_comes_back_and_a_cut_one_is_one_line(tmp_path):
    generator = np.random.default_rng(0)
    parts = [
        DensePoints(
            generator.normal(size=(n, 3)).astype(np.float32),
            generator.normal(size=(n, 3)).astype(np.float32),
            generator.integers(0, 255, (n, 3)).astype(np.uint8),
            np.full(n, 3, np.uint8),
        )
        for n in (5, 0, 7)
    ]
    path = tmp_path / "points.ply"
    assert write_points(path, iter(parts)) == 12
    found = read_points(path)
    for name in ("points", "normals", "colours"):
        np.testing.assert_array_equal(getattr(found, name), np.concatenate([getattr(p, name) for p in parts]))
    assert [p.name for p in tmp_path.iterdir()] == ["points.ply"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cut off"):
        read_points(path)
    path.write_bytes(b"ply\nformat ascii 1.0\nelement vertex 1\nend_header\n0 0 0\n")
    with pytest.raises(DataError, match="no PLY of ours"):
        read_points(path)


def test_stored_warps_are_exact_to_a_hundredth_of_a_pixel():
    points = np.random.default_rng(0).uniform(0, [639, 479], (30, 40, 2)).astype(np.float32)
    certainty = np.random.default_rng(1).random((30, 40)).astype(np.float32)
    found = record_to_warp(warp_to_record(points, certainty, (640, 480), "s"), (640, 480))
    np.testing.assert_allclose(found.points, points, atol=0.01)
    np.testing.assert_allclose(found.certainty, certainty, atol=0.003)


def test_neighbours_see_the_same_from_another_place(true_folder, room):
    others = neighbours_of(read_model(true_folder[0] / "sparse" / "0"))
    assert set(others) == set(room.names)
    assert others["view03.png"][:2] in (["view02.png", "view04.png"], ["view04.png", "view02.png"])
    assert warp_pairs({"a": ["b", "c"], "b": ["a"], "c": []}, 1) == [("a", "b")]


def test_from_the_model_to_the_ply_also_after_a_stop(true_folder, room, tmp_path):
    """A run that is stopped goes on where it was; on a finished model nothing is computed again."""
    folder = shutil.copytree(true_folder[0], tmp_path / "model")

    class Stopped(WarpOracle):
        def warp(self, *arguments, **named):
            if len(self.calls) == 5:
                raise KeyboardInterrupt
            return super().warp(*arguments, **named)

    stopped, oracle = Stopped(room), WarpOracle(room)
    with pytest.raises(KeyboardInterrupt):
        add_dense_points(folder, true_folder[1], stopped)
    assert json.loads((folder / "summary.json").read_text())["dense_points"] == "not computed"
    summary = add_dense_points(folder, true_folder[1], oracle)
    assert oracle.calls
    assert not set(stopped.calls) & set(oracle.calls)
    found = read_points(folder / "sparse" / "0" / "dense.ply")
    assert summary["dense_points"] == len(found) > 15_000
    assert json.loads((folder / "summary.json").read_text())["dense_points"] == len(found)
    distance = distance_to_surface(room, found.points)
    assert np.median(distance) < 0.01  # cameras stand 6 away
    assert np.mean(distance < 0.06) > 0.95
    planes = np.array([n for n, _, _ in room.planes])
    assert np.mean(np.abs(found.normals @ planes.T).max(axis=1) > 0.95) > 0.8
    assert not (folder / "dense").exists()
    assert summary["dense_seconds"] > 0
    calls = len(oracle.calls)
    assert add_dense_points(folder, true_folder[1], oracle) == summary
    assert len(oracle.calls) == calls


def in_child(work):
    """Run `work` in a process of its own; gives the signal that ended it, 0 where it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_killed_at_any_stage_it_ends_like_an_undisturbed_run(true_folder, room, tmp_path, monkeypatch):
    """SIGKILL among the warps, among the depth maps and while points are written."""
    undisturbed = shutil.copytree(true_folder[0], tmp_path / "undisturbed")
    add_dense_points(undisturbed, true_folder[1], WarpOracle(room))
    folder, log = shutil.copytree(true_folder[0], tmp_path / "model"), tmp_path / "log"
    stages = {
        "save_depth_map": dense_points.save_depth_map,
        "fuse": dense_points.fuse,
        "warp": WarpOracle.warp,
    }

    def run(deadly, after):
        """One run, killed where the stage `deadly` is called once more than `after` times."""
        calls = Counter()

        def counted(name):
            def call(*arguments, **named):
                if name == deadly and calls[name] == after:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls[name] += 1
                with log.open("a") as file:
                    file.write(f"{name}\n")
                return stages[name](*arguments, **named)

            return call

        monkeypatch.setattr(dense_points, "save_depth_map", counted("save_depth_map"))
        monkeypatch.setattr(dense_points, "fuse", counted("fuse"))
        monkeypatch.setattr(WarpOracle, "warp", counted("warp"))
        add_dense_points(folder, true_folder[1], WarpOracle(room))

    assert in_child(lambda: run("warp", 5)) == signal.SIGKILL
    assert in_child(lambda: run("save_depth_map", 3)) == signal.SIGKILL
    warps = log.read_text().count("warp")
    assert in_child(lambda: run("fuse", 0)) == signal.SIGKILL
    assert len(list((folder / "dense" / "depth").glob("[!.]*.npz"))) == 6
    assert in_child(lambda: run("", 0)) == 0
    # what was written is not made again: all warps before the second kill, each depth map once
    assert Counter(log.read_text().split()) == {"warp": warps, "save_depth_map": 6, "fuse": 1}
    one, other = (place / "sparse" / "0" / "dense.ply" for place in (undisturbed, folder))
    assert one.read_bytes() == other.read_bytes()
    assert not (folder / "dense").exists()


def test_two_runs_in_one_folder_are_refused(true_folder, room, tmp_path):
    folder = shutil.copytree(true_folder[0], tmp_path / "model")
    hold = "import sys, time; from coam.store.lock import folder_lock\n"
    hold += "with folder_lock(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, str(folder)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        oracle = WarpOracle(room)
        with pytest.raises(DataError, match="model"):
            add_dense_points(folder, true_folder[1], oracle)
        other.kill()
    assert oracle.calls == []
    assert not (folder / "dense").exists()


def test_damaged_depth_maps_are_made_again(true_folder, room, tmp_path, monkeypatch):
    from coam.sfm.dense import dense_points

    folder = shutil.copytree(true_folder[0], tmp_path / "model")

    def full(*arguments):
        raise DataError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(dense_points, "write_points", full)
        with pytest.raises(DataError, match="no space"):
            add_dense_points(folder, true_folder[1], WarpOracle(room))
    depth = sorted((folder / "dense" / "depth").glob("*.npz"))
    assert len(depth) == 6
    depth[2].write_bytes(depth[2].read_bytes()[:-50])
    made = []
    plain = dense_points.save_depth_map
    monkeypatch.setattr(
        dense_points,
        "save_depth_map",
        lambda depth_map, path: (made.append(path.name), plain(depth_map, path)),
    )
    assert add_dense_points(folder, true_folder[1], WarpOracle(room))["dense_points"] > 15_000
    assert made == [depth[2].name]


def test_what_is_missing_is_one_line(true_folder, tmp_path, room):
    with pytest.raises(DataError, match=r"summary.json: is missing or damaged"):
        add_dense_points(tmp_path, true_folder[1], WarpOracle(room))
    folder = shutil.copytree(true_folder[0], tmp_path / "model")
    with pytest.raises(ConfigError, match="a matcher with warps"):
        add_dense_points(folder, true_folder[1], object())
    assert DenseOptions().fusion.views == 3
