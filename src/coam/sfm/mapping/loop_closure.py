"""Loop closure: the ends of a loop of photos that drifted apart are pulled together.

Photo by photo a loop drifts; where it comes back to its start there are two 3D points for one, and COLMAP
drops the matches that would make them one again. The pairs across that gap contradict the model
(`model_checks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coam.sfm.mapping.bundle_adjustment import adjust, remove_outliers, triangulate_all
from coam.sfm.mapping.mapper import MapperInput, deregister


def remove_misplaced(model: Any, given: MapperInput) -> tuple[Any, Sequence[str]]:
    """A model without its misplaced photos, and their names.

    A loop that drifted seems torn where it is weakest: no photo is removed where closing it mends everything.
    """
    before = given.check(model)
    if before.misplaced:
        finished = finish_model(model, given)
        after = given.check(finished)
        if not after.misplaced and not given.is_open(after):
            return finished, []
    return model, deregister(model, before.misplaced, given.options.max_misplaced)


def finish_model(model: Any, given: MapperInput) -> Any:
    """A mapped model with points from all matches, adjusted, its loops closed.

    Where pairs contradict it, points may join others that lie some way off; that is kept if it satisfies the
    pairs. The cameras of a large model are adjusted with well-spread tracks; the others give points after it.
    """
    options, loop = given.options, given.options.loop_closure
    two_view = sum(point.track.length() == 2 for point in model.points3D.values())
    # Cameras may rest on points that two photos see; elsewhere those are left-overs of longer tracks.
    two_view_tracks = bool(two_view >= options.adjustment.two_view_share * model.num_points3D())

    database = given.database
    if given.well_spread is not None and options.is_large(model.num_reg_images()):
        database = given.well_spread

    def complete(model: Any, radius: float | None = None) -> Any:
        completed = triangulate_all(model, database, options, two_view_tracks, radius)
        wide = replace(options, max_reprojection_error=radius or options.max_reprojection_error)
        adjust(completed, wide, given.constant_cameras, None if radius is None else loop.loss_scale)
        return completed

    def with_all_points(model: Any) -> Any:
        if database is given.database:
            return model
        completed = triangulate_all(model, given.database, options, two_view_tracks)
        remove_outliers(completed, options)
        return completed

    finished = with_all_points(complete(model))
    before = given.check(finished)
    if not given.is_open(before):
        return finished
    long_side = max(max(camera.width, camera.height) for camera in model.cameras.values())
    closed = with_all_points(complete(complete(finished, loop.radius * long_side)))
    after = given.check(closed)
    better = not given.is_open(after) and after.rank(closed) > before.rank(finished)
    return closed if better else finished
