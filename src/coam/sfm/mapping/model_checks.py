"""Consistency of a model with the verified pairs: misplaced photos, folded parts, weakly connected photos."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coam.geometry.coordinates import from_colmap
from coam.sfm.colmap_model import as_pose, covisibility, model_poses, registered_images
from coam.sfm.mapping.options import CheckOptions
from coam.sfm.tracks.match_graph import MatchGraph
from coam.sfm.verification.rotation_cycles import CycleReport
from coam.sfm.verification.two_view import VerifiedMatches, VerifyOptions, verify_with_poses
from coam.store.journal import Pair

Votes = Mapping[Pair, float]  # evidence of every pair for the model, negative where it is against it


@dataclass(frozen=True)
class ModelConsistency:
    """What the verified pairs say about a model; the default believes everything."""

    misplaced: Sequence[str] = ()  # photos that are not in the right place
    supporting: float = 0.0  # evidence for the model, see `pair_votes`
    contradicting: float = 0.0  # evidence against it

    def rank(self, model: Any) -> tuple[int, float, int]:
        """How good a model is: photos in the right place, then what pairs say for it, then points."""
        placed = int(model.num_reg_images()) - len(self.misplaced)
        return placed, self.supporting - self.contradicting, int(model.num_points3D())


@dataclass(frozen=True)
class ConsistencyCheck:
    """Compares models with the pairs and tracks that they were built from."""

    verified: VerifiedMatches
    graph: MatchGraph
    strong: Collection[Pair]  # the pairs that hold parts of a model together, see `strong_pairs`
    tolerance: VerifyOptions
    options: CheckOptions

    def __call__(self, model: Any) -> ModelConsistency:
        """Check one model."""
        votes = pair_votes(model, self.verified, self.tolerance, self.options)
        wrong = misplaced_photos(votes)
        if wrong:
            wrong += cut_off(sorted(set(model_poses(model)) - set(wrong)), self.strong)
        drifted = drifted_pairs(model, self.graph, self.options)
        supporting = sum(vote for pair, vote in votes.items() if vote > 0 and pair not in drifted)
        return ModelConsistency(wrong, supporting, sum(map(abs, votes.values())) - supporting)


def pair_votes(
    model: Any, verified: VerifiedMatches, tolerance: VerifyOptions, options: CheckOptions
) -> dict[Pair, float]:
    """The vote of every verified pair of registered photos: the scores of its inliers, or minus them.

    A pair votes against the model when less than half of its own inliers fit the model's poses and
    intrinsics. Pairs count by scores: a street looks alike for a hundred metres, but never as much as from
    the next step.
    """
    images, poses = registered_images(model), model_poses(model)
    lenient = replace(tolerance, max_error=options.error_factor * tolerance.max_error, min_inliers=1)
    votes: dict[Pair, float] = {}
    for pair in verified.accepted:
        if not poses.keys() >= set(pair):
            continue
        own = verified.inliers(pair)
        of_pair = [images[name].camera for name in pair], [poses[name] for name in pair]
        fitting = verify_with_poses(own, *of_pair, lenient)
        evidence = float(own.scores.sum())
        agrees = len(fitting.inliers) >= options.min_fitting * len(own)
        votes[pair] = evidence if agrees else -evidence
    return votes


def drifted_pairs(model: Any, graph: MatchGraph, options: CheckOptions) -> set[Pair]:
    """Pairs most of whose matches join two 3D points that lie apart: those across the gap of an open loop.

    `pair_votes` does not see a drift along the epipolar lines, as that of a camera that went around a thing.
    """
    images, keypoints = registered_images(model), graph.keypoints
    points = np.full(len(keypoints.ids), -1, np.int64)  # the 3D point that each keypoint sees, -1 for none
    for number, name in enumerate(keypoints.names):
        if name in images:
            seen = np.asarray(images[name].get_observation_point2D_idxs(), np.int64)
            observed = images[name].get_observation_points2D()
            points[keypoints.start[number] + seen] = [point.point3D_id for point in observed]
    drifted = set()
    for number, (first, second) in enumerate(graph.pairs):
        if first not in images or second not in images:
            continue
        nodes0, nodes1 = graph.nodes(number)
        known = (points[nodes0] >= 0) & (points[nodes1] >= 0)
        different = known & (points[nodes0] != points[nodes1])
        if 2 * different.sum() <= known.sum() or known.sum() < options.min_common_points:
            continue
        there, (rotation, translation) = images[second].camera, as_pose(images[second].cam_from_world())
        ahead = np.array([model.point3D(i).xyz for i in points[nodes0[different]]]) @ rotation.T + translation
        projected = from_colmap(there.img_from_cam(ahead))
        off = np.linalg.norm(projected - keypoints.positions[nodes1[different]], axis=1)
        far = (off > options.point_distance * max(there.width, there.height)) | (ahead[:, 2] <= 0)
        if 2 * far.sum() > known.sum():
            drifted.add((first, second))
    return drifted


def contradicted_photos(votes: Votes) -> dict[str, tuple[int, int]]:
    """Photos about whose place the votes of their pairs are against the model on the whole.

    Gives name -> (pairs against it, all its pairs).
    """
    own: dict[str, list[float]] = {}
    for pair, vote in votes.items():
        for name in pair:
            own.setdefault(name, []).append(vote)
    return {
        name: (sum(vote < 0 for vote in of_photo), len(of_photo))
        for name, of_photo in sorted(own.items())
        if sum(of_photo) < 0
    }


def folded_parts(votes: Votes) -> list[list[str]]:
    """Parts of a folded model: the pairs between them and the other parts vote against it.

    Photos are joined, the surest first, as long as the pairs between two parts vote for the model on the
    whole. Each photo of a folded model agrees with its own part; only what joins the parts tells.
    """
    names = sorted({name for pair in votes for name in pair})
    number = {name: index for index, name in enumerate(names)}
    net = np.zeros((len(names), len(names)))
    for (first, second), vote in votes.items():
        net[number[first], number[second]] = net[number[second], number[first]] = vote
    parts = [[name] for name in names]
    while net.max(initial=0.0) > 0:
        into, joined = np.unravel_index(np.argmax(net), net.shape)
        parts[into] += parts[joined]
        parts[joined] = []
        net[into] += net[joined]
        net[:, into] = net[into]
        net[into, into] = net[joined] = net[:, joined] = 0.0
    largest = max(parts, key=len, default=[])
    folded = [part for part, row in zip(parts, net, strict=True) if row.min() < 0 and part is not largest]
    return sorted((sorted(part) for part in folded), key=lambda part: (-len(part), part))


def misplaced_photos(votes: Votes) -> list[str]:
    """Photos that are not where they seem, alone or with the part that they belong to."""
    return sorted({*contradicted_photos(votes), *(name for part in folded_parts(votes) for name in part)})


def smaller_components(names: list[str], pairs: Collection[Pair]) -> list[list[str]]:
    """Connected components of the graph of photos and pairs, but for the largest; largest first."""
    from scipy.cluster.hierarchy import DisjointSet

    components = DisjointSet(names)
    for first, second in pairs:
        if first in components and second in components:
            components.merge(first, second)
    ordered = sorted((sorted(part) for part in components.subsets()), key=lambda part: (-len(part), part))
    return ordered[1:]


def cut_off(names: list[str], strong: Collection[Pair]) -> list[str]:
    """Photos that strong pairs do not join to the largest component.

    Where photos were taken out of a model, what they joined has no certain distance any more: far points hold
    the parts together, and fit everywhere.
    """
    return [name for part in smaller_components(names, strong) for name in part]


def weakly_connected(model: Any, min_points: int) -> list[list[str]]:
    """Groups of photos that fall off when pairs with fewer than `min_points` common 3D points are cut."""
    name = {image_id: image.name for image_id, image in model.images.items()}
    shared = covisibility(model).items()
    pairs = [(name[first], name[second]) for (first, second), count in shared if count >= min_points]
    return smaller_components(sorted(model_poses(model)), pairs)


def is_flat(names: Collection[str], verified: VerifiedMatches, share: float) -> bool:
    """Whether a homography explains nearly every pair: a flat scene, or a camera that only turned.

    With unknown focal lengths the two cannot be told apart from a real model by its reprojection error.
    """
    import pycolmap

    kinds = pycolmap.TwoViewGeometryConfiguration
    flat = {int(kinds.PLANAR), int(kinds.PANORAMIC), int(kinds.PLANAR_OR_PANORAMIC)}
    pairs = [pair for pair in verified.accepted if set(names).issuperset(pair)]
    used = [verified.geometries[pair].config in flat for pair in pairs]
    return bool(used) and sum(used) >= share * len(used)


def model_warnings(
    model: Any,
    verified: VerifiedMatches,
    cycles: CycleReport,
    tolerance: VerifyOptions,
    options: CheckOptions,
) -> list[str]:
    """One line for each reason to distrust a part of the model."""
    lines: list[str] = []
    names = sorted(model_poses(model))
    few = options.min_common_points
    for part in weakly_connected(model, few):
        lines.append(
            f"{listed(part)}: held by fewer than {few} points common with any other photo; check by eye"
        )
    votes = pair_votes(model, verified, tolerance, options)
    alone = contradicted_photos(votes)
    for part in folded_parts(votes):
        together = [name for name in part if name not in alone]
        if together:
            lines.append(
                f"{listed(together)}: the pairs that join them to the others disagree with the model; "
                "likely wrong"
            )
    for name, (wrong, total) in alone.items():
        lines.append(
            f"{name}: {wrong} of its {total} verified pairs disagree with its place in the model; "
            "likely wrong"
        )
    if is_flat(names, verified, options.flat_share):
        lines.append(
            "the scene is flat or the camera only turned on the spot; do not trust depths and focal lengths"
        )
    unchecked = [f"{a}-{b}" for a, b in cycles.unchecked if {a, b} <= set(names)]
    if unchecked:
        lines.append(
            f"{len(unchecked)} pairs are in no triangle, so nothing checks them: {listed(unchecked)}"
        )
    if cycles.removed:
        examples = [f"{a}-{b}" for a, b in cycles.removed]
        lines.append(
            f"{len(examples)} pairs were contradicted or not confirmed by stronger ones and not used: "
            f"{listed(examples)}"
        )
    return lines


def listed(names: Sequence[str], most: int = 5) -> str:
    """ "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
