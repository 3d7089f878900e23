"""A ring of cameras that drifted is closed, and nobody is taken out of it for the drift."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coam.sfm import mapping
from coam.sfm.alignment import model_poses, pose_errors
from coam.sfm.database import write_database
from coam.sfm.keypoints import Keypoints, Links
from coam.sfm.links import misplaced, points_apart
from coam.sfm.mapping import Judgement, MapperOptions, adjust, finish, run_mapper, settle
from coam.sfm.tracks import Measurements
from coam.sfm.verify import VerifiedPair

COUNT = 24  # photos, 15 degrees apart around a column
FARTHEST = 3  # photos so many steps apart still share matches
FOCAL, WRONG_FOCAL = 800.0, 880.0  # a wrong focal length makes every turn a little too small
WIDTH, HEIGHT = 800, 600
OPTIONS = MapperOptions(refine_intrinsics=False, threads=1)
GIVEN = (1,)  # the one camera stays as it is: wrong


@dataclass(frozen=True)
class Ring:
    truth: dict[str, tuple[np.ndarray, np.ndarray]]
    keypoints: Keypoints
    numbers: np.ndarray  # (N,) which point of the column a keypoint is

    def links(self, closed: bool, weak: bool) -> Links:
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
        return Links(tuple(pairs), lengths, Measurements(first, second, *nothing), np.ones(len(first), bool))


def make_ring(noise: float = 0.3, shifted: float = 0.0) -> Ring:
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
    return Ring(truth, keypoints, ids)


def write(ring: Ring, links: Links, path: Path, focal: float = WRONG_FOCAL) -> Path:
    import pycolmap

    camera = pycolmap.Camera(
        model="SIMPLE_PINHOLE", width=WIDTH, height=HEIGHT, params=[focal, WIDTH / 2, HEIGHT / 2]
    )
    zero = np.zeros((3, 3))
    pair = VerifiedPair(np.arange(1), 2, zero, zero, zero, np.eye(3), np.array([1.0, 0, 0]))
    write_database(path, ring.keypoints, links, dict.fromkeys(links.pairs, pair), [camera], [0] * COUNT)
    return path


@dataclass(frozen=True)
class Case:
    ring: Ring
    links: Links
    database: Path  # with the pairs of the two ends
    drifted: Any  # the model without them

    def judge(self, model: Any) -> Judgement:
        apart = points_apart(model, self.ring.keypoints, self.links)
        counts = dict(zip(self.links.pairs, np.diff(self.links.start).astype(float), strict=True))
        said = {pair: -count if pair in apart else count for pair, count in counts.items()}
        agreeing = sum(count for count in said.values() if count > 0)
        return Judgement(misplaced(said), agreeing, agreeing - sum(said.values()))

    def largest_error(self, model: Any) -> float:
        errors = pose_errors(model_poses(model), self.ring.truth)
        assert len(errors.names) == COUNT
        return float(errors.rotation.max())


@pytest.fixture(scope="module", params=[False, True], ids=["even", "weak in the middle"])
def case(request, tmp_path_factory) -> Case:
    folder, ring, weak = tmp_path_factory.mktemp("ring"), make_ring(), request.param
    chain = write(ring, ring.links(closed=False, weak=weak), folder / "chain.db")
    links = ring.links(closed=True, weak=weak)
    drifted = run_mapper([chain], folder / "work", OPTIONS, given_cameras=GIVEN)[0]
    return Case(ring, links, write(ring, links, folder / "ring.db"), drifted)


def test_points_lie_apart_where_the_ends_of_a_ring_meet(case: Case) -> None:
    completed = mapping.triangulate_all(case.drifted, case.database, OPTIONS, pairwise=False)
    ends = {pair for pair in case.links.pairs if int(pair[1]) - int(pair[0]) > FARTHEST}
    assert len(ends) == 6
    assert points_apart(completed, case.ring.keypoints, case.links) == ends


def test_the_ends_are_pulled_together(case: Case) -> None:
    assert case.largest_error(case.drifted) > 4
    closed = finish(case.drifted, case.database, OPTIONS, case.judge, GIVEN)
    assert points_apart(closed, case.ring.keypoints, case.links) == set()
    assert case.largest_error(closed) < 0.7


def test_they_stay_apart_where_nothing_reaches_so_far(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "REACH", 0.005)
    left = finish(case.drifted, case.database, OPTIONS, case.judge, GIVEN)
    assert case.judge(left).is_open
    assert case.largest_error(left) > 4


def test_nobody_is_taken_out_of_a_ring_that_can_be_closed(case: Case) -> None:
    assert len(case.judge(case.drifted).doubted) >= 2
    model, gone = settle(case.drifted, case.database, OPTIONS, case.judge, GIVEN)
    assert list(gone) == []
    assert model.num_reg_images() == COUNT


def test_wrong_observations_that_agree_do_not_bend_the_model(tmp_path: Path) -> None:
    ring = make_ring(noise=0.05, shifted=1.0)
    database = write(ring, ring.links(closed=True, weak=False), tmp_path / "ring.db", FOCAL)
    model = run_mapper([database], tmp_path / "work", OPTIONS, given_cameras=GIVEN)[0]
    adjust(model, OPTIONS, GIVEN, scale=1.0)
    bent = pose_errors(model_poses(model), ring.truth).rotation.max()
    adjust(model, OPTIONS, GIVEN)
    straight = pose_errors(model_poses(model), ring.truth).rotation.max()
    assert straight < 0.5 * bent
