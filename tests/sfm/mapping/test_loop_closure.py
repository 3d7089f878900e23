"""Loop closure: a loop of cameras that drifted is closed, and no photo is removed for the drift."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coam.geometry.alignment import pose_errors
from coam.sfm.cameras import PhotoCameras
from coam.sfm.colmap_model import model_poses
from coam.sfm.interchange.colmap import write_database
from coam.sfm.mapping.bundle_adjustment import adjust, triangulate_all
from coam.sfm.mapping.loop_closure import finish_model, remove_misplaced
from coam.sfm.mapping.mapper import MapperInput, run_mapper
from coam.sfm.mapping.model_checks import ModelConsistency, drifted_pairs, misplaced_photos
from coam.sfm.mapping.options import CheckOptions, LoopClosureOptions, MapperOptions
from coam.sfm.tracks.match_graph import Keypoints, MatchGraph
from coam.sfm.tracks.merge import Measurements
from coam.sfm.verification.two_view import VerifiedPair
from coam.sfm.workspace import load_model

COUNT = 24  # photos, 15 degrees apart around a column
FARTHEST = 3  # photos so many steps apart still share matches
FOCAL, WRONG_FOCAL = 800.0, 880.0  # a wrong focal length makes every turn a little too small
WIDTH, HEIGHT = 800, 600
OPTIONS = MapperOptions(refine_intrinsics=False, threads=1)
CONSTANT = (1,)  # the one camera stays as it is: wrong


@dataclass(frozen=True)
class Loop:
    truth: dict[str, tuple[np.ndarray, np.ndarray]]
    keypoints: Keypoints
    numbers: np.ndarray  # (N,) which point of the column a keypoint is

    def graph(self, closed: bool, weak: bool) -> MatchGraph:
        """Matches of neighbours; those of the two ends if `closed`, few across the middle if `weak`."""
        pairs, edges, start = [], [], self.keypoints.start
        for first in range(COUNT):
            for second in range(first + 1, COUNT):
                across = second - first > FARTHEST
                if (across and not closed) or min(second - first, first + COUNT - second) > FARTHEST:
                    continue
                numbers = [self.numbers[self.keypoints.of(photo)] for photo in (first, second)]
                _, *index = np.intersect1d(*numbers, return_indices=True)
                both = np.stack(index, axis=1) + start[[first, second]]
                few = weak and first < COUNT // 2 <= second and not across
                pairs.append((self.keypoints.names[first], self.keypoints.names[second]))
                edges.append(both[:: 4 if few else 1])
        first, second = np.concatenate(edges).T
        lengths = np.cumsum([0, *map(len, edges)])
        nothing = np.zeros((len(first), 2)), np.zeros((len(first), 2, 2)), np.ones(len(first))
        edges = Measurements(first, second, *nothing)
        return MatchGraph(self.keypoints, tuple(pairs), lengths, edges, np.ones(len(first), bool))


def make_loop(noise: float = 0.3, shifted: float = 0.0) -> Loop:
    """A column seen from all around; lengths in pixels.

    shifted: so far are a fifth of the points of the first six photos off, all to the same side.
    """
    rng = np.random.default_rng(0)
    angle, height, radius = (
        rng.uniform(low, high, 1500) for low, high in ((0, 6.283), (-0.6, 0.6), (0.9, 1.1))
    )
    column = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)
    truth, positions, numbers = {}, [], []
    for photo in range(COUNT):
        towards = 2 * np.pi * photo / COUNT
        centre = 4 * np.array([np.cos(towards), np.sin(towards), 0])
        ahead, down = -centre / 4, np.array([0.0, 0, -1])
        rotation = np.stack([np.cross(down, ahead), down, ahead])
        truth[f"{photo:02d}"] = (rotation, -rotation @ centre)
        seen = np.flatnonzero(np.cos(angle - towards) > np.cos(np.radians(50)))
        rays = (column[seen] - centre) @ rotation.T
        exact = FOCAL * rays[:, :2] / rays[:, 2:] + ((WIDTH - 1) / 2, (HEIGHT - 1) / 2)
        exact[::5, 0] += shifted * (photo < 6)
        positions.append(exact + rng.normal(0, noise, exact.shape))
        numbers.append(seen)
    ids = np.concatenate(numbers)
    start = np.cumsum([0, *map(len, numbers)])
    keypoints = Keypoints(tuple(truth), (None,) * COUNT, start, ids, np.concatenate(positions), ids)
    return Loop(truth, keypoints, ids)


def write(loop: Loop, graph: MatchGraph, path: Path, focal: float = WRONG_FOCAL) -> Path:
    import pycolmap

    camera = pycolmap.Camera(
        model="SIMPLE_PINHOLE", width=WIDTH, height=HEIGHT, params=[focal, WIDTH / 2, HEIGHT / 2]
    )
    pair = VerifiedPair(np.arange(1), 2, translation=np.array([1.0, 0, 0]))
    cameras = PhotoCameras((camera,), dict.fromkeys(loop.keypoints.names, 0))
    write_database(path, graph, dict.fromkeys(graph.pairs, pair), cameras)
    return path


@dataclass(frozen=True)
class Case:
    loop: Loop
    graph: MatchGraph
    database: Path  # with the pairs of the two ends
    drifted: Any  # the model without them

    @property
    def given(self) -> MapperInput:
        return MapperInput(self.database, OPTIONS, CONSTANT, self.check)

    def pairs_apart(self, model: Any) -> set[tuple[str, str]]:
        return drifted_pairs(model, self.graph, CheckOptions())

    def check(self, model: Any) -> ModelConsistency:
        apart = self.pairs_apart(model)
        counts = dict(zip(self.graph.pairs, np.diff(self.graph.start).astype(float), strict=True))
        votes = {pair: -count if pair in apart else count for pair, count in counts.items()}
        supporting = sum(count for count in votes.values() if count > 0)
        return ModelConsistency(misplaced_photos(votes), supporting, supporting - sum(votes.values()))

    def largest_error(self, model: Any) -> float:
        errors = pose_errors(model_poses(model), self.loop.truth)
        assert len(errors.names) == COUNT
        return float(errors.rotation.max())


@pytest.fixture(scope="module", params=[False, True], ids=["even", "weak in the middle"])
def case(request, tmp_path_factory) -> Case:
    folder, loop, weak = tmp_path_factory.mktemp("loop"), make_loop(), request.param
    chain = write(loop, loop.graph(closed=False, weak=weak), folder / "chain.db")
    graph = loop.graph(closed=True, weak=weak)
    drifted = run_mapper(MapperInput(chain, OPTIONS, CONSTANT), [chain])[0]
    return Case(loop, graph, write(loop, graph, folder / "loop.db"), drifted)


def test_points_lie_apart_across_the_gap_of_an_open_loop(case: Case) -> None:
    completed = triangulate_all(case.drifted, case.database, OPTIONS, two_view_tracks=False)
    ends = {pair for pair in case.graph.pairs if int(pair[1]) - int(pair[0]) > FARTHEST}
    assert len(ends) == 6
    assert case.pairs_apart(completed) == ends


def test_the_loop_is_closed(case: Case) -> None:
    assert case.largest_error(case.drifted) > 4
    closed = finish_model(case.drifted, case.given)
    assert case.pairs_apart(closed) == set()
    assert case.largest_error(closed) < 0.7


def test_it_stays_open_where_no_match_reaches_so_far(case: Case) -> None:
    narrow = replace(OPTIONS, loop_closure=LoopClosureOptions(radius=0.005))
    given = replace(case.given, options=narrow)
    left = finish_model(case.drifted, given)
    assert given.is_open(case.check(left))
    assert case.largest_error(left) > 4


def test_no_photo_is_removed_from_a_loop_that_can_be_closed(case: Case) -> None:
    assert len(case.check(case.drifted).misplaced) >= 2
    model, removed = remove_misplaced(case.drifted, case.given)
    assert list(removed) == []
    assert model.num_reg_images() == COUNT


def test_wrong_observations_that_agree_do_not_bend_the_model(tmp_path: Path) -> None:
    loop = make_loop(noise=0.05, shifted=1.0)
    database = write(loop, loop.graph(closed=True, weak=False), tmp_path / "loop.db", FOCAL)
    model = run_mapper(MapperInput(database, OPTIONS, CONSTANT), [database])[0]
    adjust(model, OPTIONS, CONSTANT, loss_scale=1.0)
    bent = pose_errors(model_poses(model), loop.truth).rotation.max()
    adjust(model, OPTIONS, CONSTANT)
    straight = pose_errors(model_poses(model), loop.truth).rotation.max()
    assert straight < 0.5 * bent


@pytest.mark.parametrize(
    ("first", "second", "models", "chosen"),
    [
        (ModelConsistency((), 99.7, 0.3), None, 1, 0),
        (ModelConsistency((), 99.6, 0.4), ModelConsistency((), 100, 0), 2, 1),
        (ModelConsistency((), 60, 40), ModelConsistency((), 90, 10), 2, 0),
        (ModelConsistency((), 99.6, 0.4), ModelConsistency(("view03.png",), 100, 0), 2, 0),
    ],
)
def test_a_closed_loop_is_chosen_if_it_satisfies_the_pairs(built, truth, first, second, models, chosen):
    """Of 100 that pairs say, 0.3 against a model is let be; with more, ends are pulled together."""
    checked = []

    def check(model):
        checked.append(model)
        return first if len(checked) == 1 else second

    model, _ = load_model(built[0])
    best = finish_model(model, MapperInput(built[0] / "database.db", check=check))
    assert len(checked) == models
    assert best is checked[chosen]
    errors = pose_errors(model_poses(best), truth)
    assert len(errors.names) == 5
    assert errors.rotation.max() < 0.5
    assert errors.position.max() < 0.01 * errors.scene_size
