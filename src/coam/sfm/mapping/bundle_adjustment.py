"""Triangulation of all matches into a model, and robust bundle adjustment."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from coam.sfm.colmap_model import pipeline_options, quiet_colmap
from coam.sfm.mapping.options import MapperOptions


def triangulate_points(model: Any, database: Path, settings: Any) -> Any:
    """A copy of a model: the same cameras with points from the matches of `database`.

    settings: pycolmap's `IncrementalPipelineOptions`.
    """
    import pycolmap

    quiet_colmap()
    with tempfile.TemporaryDirectory(prefix="coam-") as work:
        return pycolmap.triangulate_points(
            pycolmap.Reconstruction(model), database, work, work, True, settings
        )


def triangulate_all(
    model: Any, database: Path, options: MapperOptions, two_view_tracks: bool, radius: float | None = None
) -> Any:
    """A copy of a model with points from all matches of `database`, not only those that found its cameras.

    two_view_tracks: also points that only two photos see. radius: while a loop is closed, pixels by which
    matches may miss their point; by default what COLMAP thinks right.
    """
    settings = pipeline_options(options.seed, options.threads)
    settings.ba_global_max_refinements = 1  # `adjust` follows
    triangulation = settings.triangulation
    triangulation.ignore_two_view_tracks = not two_view_tracks
    if radius is not None:
        angle = options.loop_closure.angle
        triangulation.merge_max_reproj_error = triangulation.complete_max_reproj_error = radius
        triangulation.create_max_angle_error = triangulation.continue_max_angle_error = angle
        settings.mapper.filter_max_reproj_error = radius
    return triangulate_points(model, database, settings)


def adjust(
    model: Any, options: MapperOptions, constant_cameras: Collection[int], loss_scale: float | None = None
) -> None:
    """Bundle adjustment with a robust loss, then removal of observations that do not fit; twice.

    constant_cameras: ids of cameras that are not refined. loss_scale: pixels beyond which an observation
    loses weight; by default that of the options, so that tension spreads, then the median error: errors have
    a long tail, and wrong observations that agree with each other bend a model.
    """
    import pycolmap

    quiet_colmap()
    own = options.adjustment
    settings = pycolmap.BundleAdjustmentOptions()
    settings.print_summary = False
    settings.refine_focal_length = settings.refine_extra_params = options.refine_intrinsics
    settings.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    settings.ceres.solver_options.max_num_iterations = own.iterations
    settings.ceres.solver_options.function_tolerance = own.tolerance
    settings.ceres.solver_options.num_threads = options.threads
    for scale in (own.loss_scale, None):
        model.update_point_3d_errors()
        median = float(np.median([point.error for point in model.points3D.values()] or [0.0]))
        settings.ceres.loss_function_scale = loss_scale or scale or max(median, own.min_loss_scale)
        # not pycolmap.bundle_adjustment: it writes to the terminal whatever the log level
        everything = pycolmap.BundleAdjustmentConfig()
        for image_id in model.reg_image_ids():
            everything.add_image(image_id)
        for camera_id in set(model.cameras) & set(constant_cameras):
            everything.set_constant_cam_intrinsics(camera_id)
        everything.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        pycolmap.create_default_bundle_adjuster(settings, everything, model).solve()
        remove_outliers(model, options)


def remove_outliers(model: Any, options: MapperOptions) -> None:
    """Remove observations that do not fit their points, and points that are seen from one direction only."""
    import pycolmap

    model.update_point_3d_errors()
    manager = pycolmap.ObservationManager(model)
    manager.filter_all_points3D(options.max_reprojection_error, options.adjustment.min_angle)
    manager.filter_observations_with_negative_depth()
    model.update_point_3d_errors()
