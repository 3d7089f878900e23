"""Fit the certainty of the dense warp: weights and bias of `coam.matching.certainty.CertaintyOptions`.

    python tools/calibrate_certainty.py --homographies DIR --rgbd DIR [--rgbd-pairs 8]

--homographies: a folder in HPatches layout; its v_* sequences are used, where a place is right within 4.5 px
(their truth is fitted to clicked points). --rgbd: frames as `coam data pack-rgbd` takes them; pairs up to 0.7
m and 30 degrees apart. Where depth and poses are some pixels off, the truth is first moved by the smooth
part of what the flow finds otherwise; places between 3 and 4 px are left out, and so are pairs of which less
than half is right even then. Both sources weigh alike. No weight may be negative: each feature is evidence
for a place, and one that does not help is given 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from logistic_regression import logistic_regression

from coam.data.pack_rgbd import _read_frames
from coam.evaluation.benchmarks.hpatches import known_homography, load_hpatches
from coam.geometry.coordinates import resize_points
from coam.geometry.depth import intrinsics_matrix, project_by_depth, relative_pose
from coam.geometry.homography import apply_homography
from coam.geometry.pose import rotation_angle
from coam.matcher import Matcher, PreparedImage, load_matcher
from coam.matching.certainty import FEATURES, certainty_features
from coam.matching.flow import DenseFlow, find_flow_both_ways

Array = npt.NDArray[Any]
RIGHT = 3.0  # pixels of photos up to the matcher's resolution; of larger ones, of the resized photo
RIDGE = 1e-4  # of the weights of standardised features
SAMPLES = 3000  # positions of each photo
PLAUSIBLE = 12.0  # pixels: farther off, a flow tells nothing about the truth's own error
SMOOTH = 20.0  # flow cells over which the truth's own error is the same


def original(points: torch.Tensor, photo: PreparedImage) -> Array:
    """Resized pixels to original ones, float64."""
    scale = photo.resized.scale
    moved: Array = resize_points(points.double(), (1 / scale[0], 1 / scale[1])).numpy()
    return moved


def homography_samples(matcher: Matcher, root: Path) -> Iterator[tuple[Array, Array]]:
    """Features (N, K) and labels (N,) of each photo of the v_* pairs."""
    for pair in load_hpatches(root):
        if "viewpoint" not in pair.subsets:
            continue
        a, b = matcher.prepare(pair.image0), matcher.prepare(pair.image1)
        forward, backward = flows(matcher, a, b)
        matrix = known_homography(pair)
        ways = ((forward, backward, a, b, matrix), (backward, forward, b, a, np.linalg.inv(matrix)))
        for flow, back, photo, other, homography in ways:
            start = original(flow.own, photo)
            true = apply_homography(homography, start.reshape(-1, 2)).reshape(start.shape)
            inside = ((true >= 0) & (true <= np.asarray(other.image.size) - 1)).all(axis=2)
            error = np.linalg.norm(original(flow.points[0], other) - true, axis=2)
            limit = 1.5 * RIGHT * max(1.0, max(other.image.size) / matcher.config.resolution)
            yield drawn(flow, back, (inside & (error < limit)).astype(float))


def rgbd_samples(matcher: Matcher, folder: Path, count: int) -> Iterator[tuple[Array, Array]]:
    """Features (N, K) and labels (N,) of each photo of pairs of frames with depth."""
    frames = _read_frames(folder, 0.001, lambda done, total: None)
    near = []
    for first, second in combinations(range(len(frames)), 2):
        pose0, pose1 = frames[first].pose, frames[second].pose
        turn = pose1[:, :3] @ pose0[:, :3].T
        moved = np.linalg.norm(pose1[:, 3] - turn @ pose0[:, 3])
        if second - first < 9 and 0.12 < moved < 0.7 and rotation_angle(turn) < 30:
            near.append((first, second))
    for index in np.unique(np.linspace(0, len(near) - 1, count).round().astype(int)):
        pair = [frames[k] for k in near[index]]
        a, b = (matcher.prepare(folder / f"{frame.name}.color.jpg") for frame in pair)
        forward, backward = flows(matcher, a, b)
        depth = [torch.from_numpy(frame.depth)[None] for frame in pair]
        camera = [intrinsics_matrix(torch.from_numpy(frame.intrinsics).float()[None]) for frame in pair]
        poses = [torch.from_numpy(frame.pose).float()[None] for frame in pair]
        for k, (flow, back, photo, other) in enumerate(
            ((forward, backward, a, b), (backward, forward, b, a))
        ):
            start = torch.from_numpy(original(flow.own, photo)).float()
            motion = relative_pose(poses[k], poses[1 - k])
            truth = project_by_depth(
                start.view(1, -1, 2), depth[k], camera[k], depth[1 - k], camera[1 - k], motion
            )
            shape = start.shape[:2]
            visible, gone = (
                mask[0].view(shape).numpy() for mask in (truth.valid, truth.occluded | truth.outside)
            )
            residual = original(flow.points[0], other) - truth.points1[0].view(*shape, 2).numpy()
            error = np.linalg.norm(residual - smooth_part(residual, visible), axis=2)
            if visible.sum() and (error[visible] < RIGHT).mean() > 0.5:
                near_miss = (error >= RIGHT) & (error < RIGHT + 1)
                seen = np.where(near_miss, np.nan, (error < RIGHT).astype(float))
                yield drawn(flow, back, np.where(visible, seen, np.where(gone, 0.0, np.nan)))


def smooth_part(residual: Array, visible: Array) -> Array:
    """The part (h, w, 2) of residuals (h, w, 2) that neighbours share: the truth's own error."""
    import cv2

    plausible = visible & (np.linalg.norm(residual, axis=2) < PLAUSIBLE)
    chosen = plausible
    shared = np.zeros_like(residual)
    for _ in range(3):
        weight = chosen.astype(np.float32)
        total = cv2.GaussianBlur(np.where(chosen[..., None], residual, 0).astype(np.float32), (0, 0), SMOOTH)
        shared = total / (cv2.GaussianBlur(weight, (0, 0), SMOOTH)[..., None] + 1e-3)
        chosen = plausible & (np.linalg.norm(residual - shared, axis=2) < RIGHT + 2)
    return shared


def flows(matcher: Matcher, a: PreparedImage, b: PreparedImage) -> tuple[DenseFlow, DenseFlow]:
    """The flow of two photos both ways, as in `Matcher.warp`."""
    photos = a.resized.tensor, b.resized.tensor
    return find_flow_both_ways(*matcher.describe(a, b), matcher.matching.logit_scale, photos=photos)


def drawn(flow: DenseFlow, back: DenseFlow, label: Array) -> tuple[Array, Array]:
    """Features (N, K) and labels (N,) at random positions whose label (h, w) is known."""
    features = certainty_features(flow, back)[0].flatten(1).t().numpy()
    known = np.flatnonzero(~np.isnan(label))
    chosen = np.random.default_rng(0).choice(known, min(SAMPLES, len(known)), replace=False)
    return features[chosen].astype(np.float64), label.ravel()[chosen]


def main() -> None:
    """Collect, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--homographies", type=Path, required=True)
    parser.add_argument("--rgbd", type=Path, required=True)
    parser.add_argument("--rgbd-pairs", type=int, default=8)
    arguments = parser.parse_args()
    matcher = load_matcher(looks="once")
    sources = {
        "homographies": list(homography_samples(matcher, arguments.homographies)),
        "rgbd": list(rgbd_samples(matcher, arguments.rgbd, arguments.rgbd_pairs)),
    }
    x = np.concatenate([features for parts in sources.values() for features, _ in parts])
    y = np.concatenate([labels for parts in sources.values() for _, labels in parts])
    counts = [sum(len(labels) for _, labels in parts) for parts in sources.values()]
    weight = np.repeat([1 / count for count in counts], counts) / len(counts)
    weights, bias = logistic_regression(x, y, weight, RIDGE, signs=[1] * x.shape[1])
    for name, parts in sources.items():
        right = np.mean(np.concatenate([labels for _, labels in parts]))
        print(f"{name}: {len(parts)} photos, {right:.1%} of their positions right")
    print("weights", {name: round(float(value), 3) for name, value in zip(FEATURES, weights, strict=True)})
    print(f"bias {bias:.3f}")


if __name__ == "__main__":
    main()
