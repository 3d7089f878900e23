"""COLMAP's incremental and global mappers: several attempts, each checked against the verified pairs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, get_args

from coam.errors import ConfigError, DataError
from coam.sfm.colmap_model import pipeline_options, quiet_colmap, read_model, registered_images
from coam.sfm.mapping.model_checks import ModelConsistency
from coam.sfm.mapping.options import MapperName, MapperOptions, MappingAttempt
from coam.store.atomic import atomic_folder, remove_folder


@dataclass(frozen=True)
class Legs:
    """A large place is mapped so many photos after so many others; the model after each leg stays on disk."""

    folder: Path
    order: Sequence[str]  # photos
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class MapperInput:
    """What a model is built from, and what it is checked against."""

    database: Path  # with all verified matches
    options: MapperOptions = field(default_factory=MapperOptions)
    constant_cameras: Collection[int] = ()  # ids of cameras that are not refined
    # A model that registers everything can be wrong; the default believes everything.
    check: Callable[[Any], ModelConsistency] = lambda model: ModelConsistency()
    well_spread: Path | None = None  # database with fewer tracks, for the cameras of large models
    legs: Legs | None = None  # of a large place

    def is_open(self, consistency: ModelConsistency) -> bool:
        """Whether evidence that counts is against the model: it may have drifted past its own beginning."""
        total = consistency.supporting + consistency.contradicting
        return consistency.contradicting > self.options.loop_closure.max_contradiction * total


def run_mapper(given: MapperInput, databases: Sequence[Path]) -> list[Any]:
    """Build models (pycolmap reconstructions), largest first.

    databases: the one to use, and others to try where any photo of its model is misplaced.
    """
    import pycolmap

    options = given.options
    if options.mapper not in get_args(MapperName):
        raise ConfigError(f"there is no mapper {options.mapper}; choose {' or '.join(get_args(MapperName))}")
    quiet_colmap()
    pycolmap.set_random_seed(options.seed)
    best: list[Any] = []
    best_rank = (-1, 0.0, 0)
    with pycolmap.Database.open(databases[0]) as opened:
        pairs, _ = opened.read_two_view_geometries()
    verified = {image for pair in pairs for image in pycolmap.pair_id_to_image_pair(pair)}
    attempts = options.attempts[:1] if options.mapper == "global" else options.attempts
    tolerated = 0.0 if given.legs is None else options.large.few_misplaced * len(verified)
    for attempt, database in product(attempts, databases):
        models = (_map if given.legs is None else _map_in_legs)(given, database, attempt)
        consistency, rank = ModelConsistency(), (0, 0.0, 0)
        if models:
            models[0], consistency = register_again(given, models[0], database, attempt)
            rank = consistency.rank(models[0])
        if rank > best_rank:
            best, best_rank = models, rank
        all_consistent = bool(models) and len(consistency.misplaced) <= tolerated
        enough = best_rank[0] >= options.enough_registered * len(verified)
        if enough and (all_consistent or database is databases[-1]):
            break
    return best


def register_again(
    given: MapperInput, model: Any, database: Path, attempt: MappingAttempt
) -> tuple[Any, ModelConsistency]:
    """The model, or what it became when its misplaced photos were registered once more, whichever is better.

    A photo that was registered early, on few points, may be in a wrong place; now all others stand.
    """
    import pycolmap

    before, again = given.check(model), pycolmap.Reconstruction(model)
    if not deregister(again, before.misplaced, given.options.max_misplaced):
        return model, before
    found = _map(given, database, attempt, again)
    again = found[0] if found else again
    after = given.check(again)
    return (again, after) if after.rank(again) > before.rank(model) else (model, before)


def deregister(model: Any, names: Sequence[str], max_share: float) -> Sequence[str]:
    """Deregister photos of a model, none is better than a wrong one; gives their names.

    Where they are more than `max_share` of the model, nobody knows which part is right: it stays as it is.
    """
    registered = model.num_reg_images()
    if not 0 < len(names) <= min(max_share * registered, registered - 3):
        return []
    for image in [model.image(i) for i in model.reg_image_ids()]:
        if image.name in names:
            model.deregister_frame(image.frame_id)
    return names


def _map_in_legs(given: MapperInput, database: Path, attempt: MappingAttempt) -> list[Any]:
    """Map a large place; legs that a killed run has finished are read, not mapped again.

    A model is always read from its file before the next leg, so a run that was killed gives what others give.
    """
    legs, options = given.legs, given.options
    assert legs is not None
    model, step, photos = None, options.large.photos_per_leg, len(legs.order)
    folder = legs.folder / f"{options.attempts.index(attempt)}-{database.stem}"
    for end in range(step, photos + step, step):
        leg = folder / f"{end:06d}"
        if not _is_whole(leg):
            remove_folder(leg)
            found = _map(given, database, attempt, model, legs.order[:end])
            grown = found[0] if found else model
            with atomic_folder(leg) as temporary:
                if grown is not None:
                    grown.write(temporary)
        model = _read_leg(leg)
        registered = 0 if model is None else model.num_reg_images()
        legs.say(f"{registered} of the first {min(end, photos)} of {photos} photos mapped")
    placed = set() if model is None else set(registered_images(model))
    others = [name for name in legs.order if name not in placed]
    rest = _map(given, database, attempt, names=others) if len(others) >= options.min_model_size else []
    return rest if model is None else [model, *rest]


def _read_leg(leg: Path) -> Any:
    """The model of a leg; None where none of its photos could be placed."""
    return read_model(leg) if any(leg.iterdir()) else None


def _is_whole(leg: Path) -> bool:
    """Whether a leg is there and can be read."""
    try:
        _read_leg(leg)
    except (DataError, OSError):
        return False
    return True


def _map(
    given: MapperInput,
    database: Path,
    attempt: MappingAttempt,
    begin: Any = None,
    names: Sequence[str] = (),
) -> list[Any]:
    """Run COLMAP's mapper once. begin: a model whose missing photos are to be registered.

    names: of the photos to map, by default all.
    """
    import pycolmap

    with tempfile.TemporaryDirectory(prefix="coam-") as work:  # COLMAP writes copies of its own there
        if begin is None and given.options.mapper == "global":
            found = pycolmap.global_mapping(database, work, work, _global_options(given))
            return _largest_first(found, given.options.min_model_size)
        settings, before = _incremental_options(given, attempt), ""
        settings.image_names = list(names)
        if begin is not None:
            settings.multiple_models = False
            before = tempfile.mkdtemp(dir=work)
            begin.write(before)
        found = pycolmap.incremental_mapping(database, work, tempfile.mkdtemp(dir=work), settings, before)
        return _largest_first(found, given.options.min_model_size)


def _largest_first(models: Mapping[int, Any], least: int) -> list[Any]:
    """Models sorted by size, without those that add fewer than `least` photos to the larger ones.

    COLMAP begins another model where a photo fits into none, and takes photos of the first into it as well.
    """
    ordered = sorted(models.values(), key=lambda model: (-model.num_reg_images(), -model.num_points3D()))
    chosen: list[Any] = []
    seen: set[int] = set()
    for model in ordered:
        images = set(model.reg_image_ids())
        if len(images) >= 2 and len(images - seen) >= least:
            chosen.append(model)
            seen |= images
    return chosen


def _incremental_options(given: MapperInput, attempt: MappingAttempt) -> Any:
    options = given.options
    settings = pipeline_options(options.seed, options.threads)
    settings.min_num_matches = options.min_matches
    settings.min_model_size = options.min_model_size
    settings.mapper.init_min_tri_angle = attempt.first_angle
    settings.mapper.abs_pose_min_num_inliers = attempt.min_inliers
    # two photos have nothing but two-view tracks; elsewhere those are the least reliable
    settings.triangulation.ignore_two_view_tracks = not attempt.two_view_tracks and options.min_model_size > 2
    settings.ba_refine_focal_length = settings.ba_refine_extra_params = options.refine_intrinsics
    settings.constant_cameras = set(given.constant_cameras)
    if given.legs is not None:
        settings.ba_global_frames_ratio = settings.ba_global_points_ratio = options.large.growth
        settings.ba_global_max_refinements = options.large.refinements
        settings.ba_global_max_num_iterations = options.large.iterations
        settings.ba_global_function_tolerance = options.large.tolerance
    return settings


def _global_options(given: MapperInput) -> Any:
    import pycolmap

    options = given.options
    settings = pycolmap.GlobalPipelineOptions()
    settings.min_num_matches = options.min_matches
    settings.min_model_size = options.min_model_size
    settings.random_seed = settings.mapper.random_seed = options.seed
    settings.num_threads = options.threads
    adjustment = settings.mapper.bundle_adjustment
    # this mapper refines all cameras or none; the last bundle adjustment refines the others after it
    refine = options.refine_intrinsics and not given.constant_cameras
    adjustment.refine_focal_length = adjustment.refine_extra_params = refine
    return settings
