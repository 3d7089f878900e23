"""pycolmap's mappers, bundle adjustment and what surrounds them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError
from coam.geometry.coordinates import from_colmap


class Attempt(NamedTuple):
    """One way to run the incremental mapper."""

    first_angle: float  # degrees between the rays of the first pair
    two_view_tracks: bool  # also triangulate tracks that only two photos see
    min_inliers: int  # points that must agree before a photo is registered


# A wide first pair and long tracks are best. Where only close pairs have many matches COLMAP starts from a
# wide one with few, and the model stays a fragment: then closer pairs and short tracks are tried.
ATTEMPTS = (Attempt(16.0, False, 30), Attempt(6.0, True, 20), Attempt(3.0, True, 20))
MOST_DOUBTED = 0.5  # of a model: so many photos in wrong places are taken out of it
ENOUGH_REGISTERED = 0.8  # of the images that have a verified pair: further attempts are not needed
OPEN_LOOP = 0.003  # of what pairs say is against a model: it may have drifted past its own beginning
REACH = 0.05  # of the long side: so far may a point be from its second self when a loop is closed
PULLING_SCALE = 1.0  # pixels of the robust loss while a loop is closed


@dataclass(frozen=True)
class Judgement:
    """What the verified pairs say about a model; the default believes everything."""

    doubted: Sequence[str] = ()  # photos that are not believed to be in the right place
    agreeing: float = 0.0  # evidence for the model, see `links.agreement`
    disagreeing: float = 0.0  # evidence against it

    @property
    def is_open(self) -> bool:
        """Whether pairs that count are left unsatisfied."""
        return self.disagreeing > OPEN_LOOP * (self.agreeing + self.disagreeing)


@dataclass(frozen=True)
class MapperOptions:
    """How models are built from a database."""

    mapper: Literal["incremental", "global"] = "incremental"
    min_model_size: int = 3  # photos: smaller models are dropped
    max_reprojection_error: float = 4.0  # pixels: observations further off are removed after refinement
    refine_intrinsics: bool = True
    min_links: int = 15  # verified matches a pair needs to be used
    links_per_pair: int = 300  # cameras are found from so many of a pair's best; all are triangulated after
    seed: int = 0
    threads: int = -1


def quiet_colmap() -> None:
    """COLMAP writes pages to the terminal; errors are enough."""
    import pycolmap

    pycolmap.logging.alsologtostderr = False
    pycolmap.logging.stderrthreshold = pycolmap.logging.Level.FATAL.value
    pycolmap.logging.minloglevel = pycolmap.logging.Level.FATAL.value


def run_mapper(
    databases: Sequence[Path],
    output: Path,
    options: MapperOptions,
    judge: Callable[[Any], Judgement] = lambda model: Judgement(),
    given_cameras: Collection[int] = (),
) -> list[Any]:
    """Models (pycolmap reconstructions) from a database, largest first. Writes snapshots below `output`.

    databases: the one to use, and others to try where there is doubt about any photo of its model. judge:
    what is known about a model besides; attempts are judged by it, because a model that registers everything
    can be wrong. given_cameras: ids of cameras that are not refined.
    """
    import pycolmap

    quiet_colmap()
    output.mkdir(parents=True, exist_ok=True)
    pycolmap.set_random_seed(options.seed)
    if options.mapper not in ("incremental", "global"):
        raise ConfigError(f"there is no mapper {options.mapper}; choose incremental or global")
    best: list[Any] = []
    best_value = (-1, 0.0, 0)
    enough = ENOUGH_REGISTERED * _linked_images(databases[0])
    for number, (attempt, database) in enumerate(product(ATTEMPTS, databases)):
        if options.mapper == "global" and attempt is not ATTEMPTS[0]:
            continue
        work = output / str(number)
        work.mkdir()
        models = _largest_first(_map_once(database, work, options, attempt, given_cameras))
        judged = judge(models[0]) if models else Judgement()
        if judged.doubted:
            again = register_again(models[0], database, work, options, attempt, given_cameras, judged.doubted)
            judged_again = judged if again is models[0] else judge(again)
            if _value(again, judged_again) > _value(models[0], judged):
                models[0], judged = again, judged_again
        value = _value(models[0], judged) if models else (0, 0.0, 0)
        if value > best_value:
            best, best_value = models, value
        no_doubt = bool(models) and not judged.doubted
        if best_value[0] >= enough and (no_doubt or database is databases[-1]):
            break
    return best


def settle(
    model: Any,
    database: Path,
    options: MapperOptions,
    judge: Callable[[Any], Judgement],
    given_cameras: Collection[int] = (),
) -> tuple[Any, Sequence[str]]:
    """A model without the photos that are in doubt, and their names.

    A ring that drifted seems torn where it is weakest: nobody is taken out where closing it ends all doubt.
    """
    judged = judge(model)
    if judged.doubted:
        finished = finish(model, database, options, judge, given_cameras)
        judged_again = judge(finished)
        if not judged_again.doubted and not judged_again.is_open:
            return finished, []
    return model, take_out(model, judged.doubted)


def finish(
    model: Any,
    database: Path,
    options: MapperOptions,
    judge: Callable[[Any], Judgement] = lambda model: Judgement(),
    given_cameras: Collection[int] = (),
) -> Any:
    """A mapped model with points from all matches of `database`, adjusted.

    Photo by photo a ring of photos drifts; where it comes back to its start there are two points for one, and
    COLMAP drops the matches that would make them one again. Where `judge` finds pairs unsatisfied, points may
    join others that lie some way off; that is kept if it satisfies the pairs.
    """
    pairwise = _rests_on_pairs(model)

    def complete(model: Any, reach: float | None = None) -> Any:
        completed = triangulate_all(model, database, options, pairwise, reach)
        if reach is None:
            adjust(completed, options, given_cameras)
        else:  # what lies far off is to pull
            adjust(completed, replace(options, max_reprojection_error=reach), given_cameras, PULLING_SCALE)
        return completed

    finished = complete(model)
    judged = judge(finished)
    if not judged.is_open:
        return finished
    reach = REACH * max(max(camera.width, camera.height) for camera in model.cameras.values())
    closed = complete(complete(finished, reach))
    judged_again = judge(closed)
    better = not judged_again.is_open and _value(closed, judged_again) > _value(finished, judged)
    return closed if better else finished


def _rests_on_pairs(model: Any) -> bool:
    """Whether cameras rest on points that two photos see; elsewhere those are left-overs of longer tracks."""
    pairwise = sum(point.track.length() == 2 for point in model.points3D.values())
    return bool(pairwise >= 0.2 * model.num_points3D())


def _value(model: Any, judged: Judgement) -> tuple[int, float, int]:
    """How good a model is: photos that are believed, then what pairs say for it, then points."""
    believed = int(model.num_reg_images()) - len(judged.doubted)
    return believed, judged.agreeing - judged.disagreeing, int(model.num_points3D())


def take_out(model: Any, doubted: Sequence[str]) -> Sequence[str]:
    """Take doubted photos out of a model, none is better than a wrong one; gives their names.

    Where more than `MOST_DOUBTED` of a model is doubted, nobody knows which part is right: it stays as it is.
    """
    if not 0 < len(doubted) <= min(MOST_DOUBTED * model.num_reg_images(), model.num_reg_images() - 3):
        return []
    for image in [model.image(i) for i in model.reg_image_ids()]:
        if image.name in doubted:
            model.deregister_frame(image.frame_id)
    return doubted


def register_again(
    model: Any,
    database: Path,
    work: Path,
    options: MapperOptions,
    attempt: Attempt,
    given_cameras: Collection[int],
    doubted: Sequence[str],
) -> Any:
    """A copy of a model whose doubted photos were taken out and registered once more, now that all others
    stand. A photo that came early, on few points, may have gone astray.
    """
    import pycolmap

    again = pycolmap.Reconstruction(model)
    if not take_out(again, doubted):
        return model
    before, after = work / "before", work / "after"
    before.mkdir()
    after.mkdir()
    again.write(before)
    settings = _incremental_options(options, attempt)
    settings.multiple_models = False
    settings.constant_cameras = settings.mapper.constant_cameras = set(given_cameras)
    found = _largest_first(pycolmap.incremental_mapping(database, work, after, settings, input_path=before))
    return found[0] if found else again


def _map_once(
    database: Path, work: Path, options: MapperOptions, attempt: Attempt, given_cameras: Collection[int]
) -> Mapping[int, Any]:
    import pycolmap

    if options.mapper == "global":
        # this mapper refines all cameras or none; `adjust` refines the others after it
        refine = options.refine_intrinsics and not given_cameras
        settings = _global_options(replace(options, refine_intrinsics=refine))
        found: Mapping[int, Any] = pycolmap.global_mapping(database, work, work, settings)
        return found
    settings = _incremental_options(options, attempt)
    settings.constant_cameras = settings.mapper.constant_cameras = set(given_cameras)
    found = pycolmap.incremental_mapping(database, work, work, settings)
    return found


def _largest_first(models: Mapping[int, Any]) -> list[Any]:
    """Models sorted by size, without those that add no photo to the larger ones."""
    ordered = sorted(models.values(), key=lambda model: (-model.num_reg_images(), -model.num_points3D()))
    kept: list[Any] = []
    seen: set[int] = set()
    for model in ordered:
        images = set(model.reg_image_ids())
        if len(images) >= 2 and images - seen:
            kept.append(model)
            seen |= images
    return kept


def _linked_images(database: Path) -> int:
    """Number of images with at least one verified pair."""
    import pycolmap

    opened = pycolmap.Database.open(database)
    try:
        ids, _ = opened.read_two_view_geometries()
    finally:
        opened.close()
    return len({image for pair in ids for image in pycolmap.pair_id_to_image_pair(pair)})


def _incremental_options(options: MapperOptions, attempt: Attempt) -> Any:
    import pycolmap

    settings = pycolmap.IncrementalPipelineOptions()
    settings.min_num_matches = options.min_links
    settings.min_model_size = options.min_model_size
    settings.random_seed = settings.mapper.random_seed = settings.triangulation.random_seed = options.seed
    settings.num_threads = options.threads
    settings.mapper.init_min_tri_angle = attempt.first_angle
    settings.mapper.abs_pose_min_num_inliers = attempt.min_inliers
    # two photos have nothing but two-view tracks; elsewhere those are the least reliable
    settings.triangulation.ignore_two_view_tracks = not attempt.two_view_tracks and options.min_model_size > 2
    settings.extract_colors = False  # done here, on upright photos
    settings.ba_refine_focal_length = settings.ba_refine_extra_params = options.refine_intrinsics
    settings.mapper.abs_pose_refine_focal_length = options.refine_intrinsics
    settings.mapper.abs_pose_refine_extra_params = options.refine_intrinsics
    return settings


def _global_options(options: MapperOptions) -> Any:
    import pycolmap

    settings = pycolmap.GlobalPipelineOptions()
    settings.min_num_matches = options.min_links
    settings.min_model_size = options.min_model_size
    settings.random_seed = settings.mapper.random_seed = options.seed
    settings.num_threads = options.threads
    adjustment = settings.mapper.bundle_adjustment
    adjustment.refine_focal_length = adjustment.refine_extra_params = options.refine_intrinsics
    return settings


def triangulate_all(
    model: Any, database: Path, options: MapperOptions, pairwise: bool, reach: float | None = None
) -> Any:
    """A copy: the same cameras with points from all matches of `database`, not only those that found them.

    pairwise: also points that only two photos see. reach: matches may miss their point by so many pixels; by
    default by what COLMAP thinks right.
    """
    import pycolmap

    quiet_colmap()
    settings = pycolmap.IncrementalPipelineOptions()
    settings.random_seed = settings.triangulation.random_seed = options.seed
    settings.num_threads = options.threads
    settings.extract_colors = False
    settings.ba_global_max_refinements = 1  # `adjust` follows
    settings.triangulation.ignore_two_view_tracks = not pairwise
    if reach is not None:
        settings.triangulation.merge_max_reproj_error = settings.triangulation.complete_max_reproj_error = (
            reach
        )
        settings.triangulation.create_max_angle_error = settings.triangulation.continue_max_angle_error = 4.0
        settings.mapper.filter_max_reproj_error = reach
    with tempfile.TemporaryDirectory(prefix="coam-") as work:
        return pycolmap.triangulate_points(
            pycolmap.Reconstruction(model), database, work, work, True, settings
        )


def adjust(
    model: Any, options: MapperOptions, given_cameras: Collection[int] = (), scale: float | None = None
) -> None:
    """Bundle adjustment with a robust loss, then removal of observations that do not fit; twice.

    given_cameras: ids of cameras that are not refined. scale: pixels beyond which an observation loses
    weight; by default 1, so that tension spreads, then the usual error: errors have a long tail, and
    wrong observations that agree with each other bend a model.
    """
    import pycolmap

    quiet_colmap()
    settings = pycolmap.BundleAdjustmentOptions()
    settings.print_summary = False
    settings.refine_focal_length = settings.refine_extra_params = options.refine_intrinsics
    settings.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    settings.ceres.solver_options.max_num_iterations = 50
    settings.ceres.solver_options.function_tolerance = 1e-6
    for sharp in (False, True):
        usual = max(_usual_error(model), 0.02) if sharp else 1.0
        settings.ceres.loss_function_scale = scale or usual
        # not pycolmap.bundle_adjustment: it writes to the terminal whatever the log level
        everything = pycolmap.BundleAdjustmentConfig()
        for image_id in model.reg_image_ids():
            everything.add_image(image_id)
        for camera_id in set(model.cameras) & set(given_cameras):
            everything.set_constant_cam_intrinsics(camera_id)
        everything.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        pycolmap.create_default_bundle_adjuster(settings, everything, model).solve()
        model.update_point_3d_errors()
        manager = pycolmap.ObservationManager(model)
        manager.filter_all_points3D(options.max_reprojection_error, 1.5)
        manager.filter_observations_with_negative_depth()
    model.update_point_3d_errors()


def _usual_error(model: Any) -> float:
    """The median error of the points in pixels."""
    model.update_point_3d_errors()
    return float(np.median([point.error for point in model.points3D.values()] or [0.0]))


def colour_points(model: Any, load_rgb: Callable[[str], npt.NDArray[np.uint8]]) -> None:
    """Give every 3D point the mean colour of its observations. load_rgb: photo name -> (H, W, 3)."""
    total: dict[int, npt.NDArray[np.float64]] = {}
    count: dict[int, int] = {}
    for image_id in model.reg_image_ids():
        image = model.image(image_id)
        rgb = load_rgb(image.name)
        for point in image.get_observation_points2D():
            x, y = np.rint(from_colmap(point.xy)).astype(int)
            colour = rgb[min(max(y, 0), rgb.shape[0] - 1), min(max(x, 0), rgb.shape[1] - 1)]
            total[point.point3D_id] = total.get(point.point3D_id, np.zeros(3)) + colour
            count[point.point3D_id] = count.get(point.point3D_id, 0) + 1
    for point_id, colour in total.items():
        model.point3D(point_id).color = np.rint(colour / count[point_id]).astype(np.uint8)


def figures(models: Sequence[Any]) -> dict[str, Any]:
    """The five figures of the paper's tables, of the largest model; `coam.sfm.dense` adds the fifth."""
    dense = "not computed"
    if not models:
        return {"registered_images": 0, "sparse_points": 0, "mean_track_length": 0.0,
                "mean_reprojection_error": 0.0, "dense_points": dense}  # fmt: skip
    best = models[0]
    return {
        "registered_images": best.num_reg_images(),
        "sparse_points": best.num_points3D(),
        "mean_track_length": round(float(best.compute_mean_track_length()), 4),
        "mean_reprojection_error": round(float(best.compute_mean_reprojection_error()), 4),
        "dense_points": dense,
    }


def camera_specs(model: Any) -> Mapping[str, str]:
    """photo name -> "MODEL WIDTH HEIGHT PARAMS" of the registered photos."""
    specs = {}
    for image_id in model.reg_image_ids():
        camera = model.image(image_id).camera
        params = " ".join(f"{value:.10g}" for value in camera.params)
        specs[model.image(image_id).name] = f"{camera.model_name} {camera.width} {camera.height} {params}"
    return specs
