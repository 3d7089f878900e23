"""What each step towards sub-pixel tracks brings, measured on one set of matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from coam.sfm.alignment import Pose, model_poses, pose_errors
from coam.sfm.pipeline import SfmOptions, Tracks, load_model, run_sfm


def compare_variants(
    photos: str | Path,
    output: str | Path,
    matcher: Any,
    options: SfmOptions | None = None,
    truth: Mapping[str, Pose] | None = None,
    scene_size: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, float]]:
    """Reconstruct three times from the same matches; variant -> figures.

    quantised: keypoints on the grid. merged: pairwise offsets merged per track. refined: aligned in
    the photos, then merged. Figures: registered_images, sparse_points, mean_track_length,
    mean_reprojection_error, and with `truth` (photo name -> pose) the median position error in scene sizes
    and the median rotation error in degrees. The model of the last variant stays in `output`.
    """
    results: dict[str, dict[str, float]] = {}
    for variant in get_args(Tracks):
        summary = run_sfm(photos, output, matcher, replace(options or SfmOptions(), tracks=variant))
        names = ("registered_images", "sparse_points", "mean_track_length", "mean_reprojection_error")
        results[variant] = {name: float(summary[name]) for name in names}
        if truth is not None and summary["registered_images"] >= 3:
            errors = pose_errors(model_poses(load_model(output)[0]), truth, scene_size)
            results[variant]["median_position_error"] = float(np.median(errors.position) / errors.scene_size)
            results[variant]["median_rotation_error"] = float(np.median(errors.rotation))
        say(f"{variant}: " + ", ".join(f"{name} {value:.4g}" for name, value in results[variant].items()))
    return results
