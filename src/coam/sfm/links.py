"""Is the model held together by enough links, and do they agree with it? One line for each doubt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.geometry.coordinates import from_colmap
from coam.sfm.alignment import model_poses
from coam.sfm.cycles import CycleReport
from coam.sfm.journal import Pair, PairJournal
from coam.sfm.keypoints import Keypoints, Links
from coam.sfm.match_pairs import record_to_matches
from coam.sfm.verify import VerifiedPair, VerifyOptions, verify_with_poses

FEW_POINTS = 30  # common 3D points below which two photos do not hold each other
APART = 0.01  # of the long side: two points for one that are farther from each other are not in one place


def shared_points(model: Any) -> dict[Pair, int]:
    """Number of common 3D points of every pair of registered photos that has any."""
    names = {image_id: model.image(image_id).name for image_id in model.reg_image_ids()}
    shared: dict[Pair, int] = {}
    for point in model.points3D.values():
        seen = sorted(
            {names[element.image_id] for element in point.track.elements if element.image_id in names}
        )
        for index, first in enumerate(seen):
            for second in seen[index + 1 :]:
                shared[first, second] = shared.get((first, second), 0) + 1
    return shared


def weakly_held(names: list[str], shared: Mapping[Pair, int], few: int = FEW_POINTS) -> list[list[str]]:
    """Groups of photos that fall off the largest group when pairs with fewer than `few` common points are
    cut.
    """
    group = {name: name for name in names}

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for (first, second), count in shared.items():
        if count >= few and first in group and second in group:
            group[root(first)] = root(second)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(root(name), []).append(name)
    ordered = sorted(members.values(), key=lambda part: (-len(part), part))
    return ordered[1:]


def agreement(
    model: Any, matched: PairJournal, verified: Mapping[Pair, VerifiedPair], options: VerifyOptions
) -> dict[Pair, float]:
    """What every verified pair of registered photos says about the model: the scores of its inliers, negative
    where it disagrees.

    A pair disagrees when less than half of its own inliers fit the model's poses and intrinsics. Pairs count
    by scores: a street looks alike for a hundred metres, but never as much as from the next step.
    """
    poses = model_poses(model)
    cameras = {model.image(i).name: model.image(i).camera for i in model.reg_image_ids()}
    lenient = replace(options, max_error=2 * options.max_error, min_inliers=1)
    said: dict[Pair, float] = {}
    for (first, second), geometry in verified.items():
        if not geometry.accepted or first not in poses or second not in poses:
            continue
        own = record_to_matches(matched.read((first, second))).select(geometry.inliers)
        fitting = verify_with_poses(
            own, cameras[first], cameras[second], poses[first], poses[second], lenient
        )
        evidence = float(own.scores.sum())
        said[first, second] = -evidence if 2 * len(fitting.inliers) < len(own) else evidence
    return said


def points_apart(model: Any, keypoints: Keypoints, links: Links) -> set[Pair]:
    """Pairs most of whose matches join two points that lie apart: those of the ends of a ring that drifted.

    `agreement` does not see a drift along the epipolar lines, as that of a camera that went around a thing.
    """
    images = {model.image(i).name: model.image(i) for i in model.reg_image_ids()}
    points = _points_of_nodes(images, keypoints)
    apart = set()
    for number, (first, second) in enumerate(links.pairs):
        if first not in images or second not in images:
            continue
        edges = links.of(number)
        held = links.held[edges]
        nodes0, nodes1 = links.measurements.first[edges][held], links.measurements.second[edges][held]
        known = (points[nodes0] >= 0) & (points[nodes1] >= 0)
        different = known & (points[nodes0] != points[nodes1])
        if 2 * different.sum() <= known.sum() or known.sum() < FEW_POINTS:
            continue
        there = images[second]
        seen = np.array([model.point3D(i).xyz for i in points[nodes0[different]]])
        ahead = seen @ there.cam_from_world().rotation.matrix().T + there.cam_from_world().translation
        projected = from_colmap(there.camera.img_from_cam(ahead))
        off = np.linalg.norm(projected - keypoints.positions[nodes1[different]], axis=1)
        limit = APART * max(there.camera.width, there.camera.height)
        far = (off > limit) | (ahead[:, 2] <= 0)
        if 2 * far.sum() > known.sum():
            apart.add((first, second))
    return apart


def _points_of_nodes(images: Mapping[str, Any], keypoints: Keypoints) -> npt.NDArray[np.int64]:
    """(N,) the 3D point that each keypoint sees, -1 for none."""
    points = np.full(len(keypoints.ids), -1, np.int64)
    for number, name in enumerate(keypoints.names):
        if name not in images:
            continue
        image = images[name]
        seen = image.get_observation_point2D_idxs()
        start = keypoints.start[number]
        points[start + np.asarray(seen, np.int64)] = [image.points2D[i].point3D_id for i in seen]
    return points


def contradicted(said: Mapping[Pair, float]) -> dict[str, tuple[int, int]]:
    """Photos about whose place the pairs (see `agreement`) say more against than for: name -> (disagreeing
    pairs, all its pairs).
    """
    own: dict[str, list[float]] = {}
    for pair, evidence in said.items():
        for name in pair:
            own.setdefault(name, []).append(evidence)
    return {
        name: (sum(e < 0 for e in evidence), len(evidence))
        for name, evidence in sorted(own.items())
        if sum(evidence) < 0
    }


def torn_off(said: Mapping[Pair, float]) -> list[list[str]]:
    """Parts of a model whose pairs with the other parts (see `agreement`) speak against it.

    Photos are joined, the surest first, as long as the pairs between two parts speak for the model on the
    whole. Each photo of a folded model agrees with its own part; only what joins the parts tells.
    """
    names = sorted({name for pair in said for name in pair})
    number = {name: index for index, name in enumerate(names)}
    net = np.zeros((len(names), len(names)))
    for (first, second), evidence in said.items():
        net[number[first], number[second]] = net[number[second], number[first]] = evidence
    parts = [[name] for name in names]
    while net.max(initial=0.0) > 0:
        kept, joined = np.unravel_index(np.argmax(net), net.shape)
        parts[kept] += parts[joined]
        parts[joined] = []
        net[kept] += net[joined]
        net[:, kept] = net[kept]
        net[kept, kept] = net[joined] = net[:, joined] = 0.0
    largest = max(parts, key=len, default=[])
    torn = [part for part, row in zip(parts, net, strict=True) if row.min() < 0 and part is not largest]
    return sorted((sorted(part) for part in torn), key=lambda part: (-len(part), part))


def misplaced(said: Mapping[Pair, float]) -> list[str]:
    """Photos that are not where they seem, alone or with the part that they belong to."""
    return sorted({*contradicted(said), *(name for part in torn_off(said) for name in part)})


def cut_off(names: list[str], strong: Collection[Pair]) -> list[str]:
    """Photos that strong pairs do not join to the largest part.

    Where photos were taken out of a model, what they joined has no certain distance any more: far points hold
    the parts together, and fit everywhere.
    """
    return [name for part in weakly_held(names, dict.fromkeys(strong, 1), few=1) for name in part]


def looks_flat(names: list[str], verified: Mapping[Pair, VerifiedPair]) -> bool:
    """Whether a homography explains nearly every pair: a flat scene, or a camera that only turned.

    With unknown focal lengths the two cannot be told apart from a real model by its reprojection error.
    """
    import pycolmap

    kinds = pycolmap.TwoViewGeometryConfiguration
    flat = {int(kinds.PLANAR), int(kinds.PANORAMIC), int(kinds.PLANAR_OR_PANORAMIC)}
    inside = set(names)
    used = [g.config in flat for pair, g in verified.items() if g.accepted and inside.issuperset(pair)]
    return bool(used) and sum(used) >= 0.9 * len(used)


def doubts(
    model: Any,
    matched: PairJournal,
    verified: Mapping[Pair, VerifiedPair],
    cycles: CycleReport,
    options: VerifyOptions,
) -> list[str]:
    """One line for each reason to distrust a part of the model."""
    lines: list[str] = []
    names = sorted(model_poses(model))
    for part in weakly_held(names, shared_points(model)):
        lines.append(
            f"{_listed(part)}: held by fewer than {FEW_POINTS} points common with any other photo; "
            f"check by eye"
        )
    said = agreement(model, matched, verified, options)
    alone = contradicted(said)
    for part in torn_off(said):
        together = [name for name in part if name not in alone]
        if together:
            lines.append(
                f"{_listed(together)}: the pairs that join them to the others disagree with the model; "
                f"likely wrong"
            )
    for name, (wrong, total) in alone.items():
        lines.append(
            f"{name}: {wrong} of its {total} verified pairs disagree with its place in the model; "
            f"likely wrong"
        )
    if looks_flat(names, verified):
        lines.append(
            "the scene is flat or the camera only turned on the spot; do not trust depths and focal lengths"
        )
    registered = set(names)
    unchecked = [pair for pair in cycles.unchecked if registered.issuperset(pair)]
    if unchecked:
        lines.append(
            f"{len(unchecked)} pairs are in no triangle, so nothing checks them: "
            f"{_listed(['-'.join(p) for p in unchecked])}"
        )
    if cycles.removed:
        examples = [f"{a}-{b}" for a, b in cycles.removed]
        lines.append(
            f"{len(examples)} pairs were contradicted or not confirmed by stronger ones and not used: "
            f"{_listed(examples)}"
        )
    return lines


def _listed(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
