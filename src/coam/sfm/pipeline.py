"""Structure from motion: a folder of photos in, a model folder out. Kill it at any time and start it again.

`reconstruct` is a list of stages. Each is a function of its own: it takes the workspace and what stages
before it gave, and leaves a file of the model folder (`model_folder.ModelFolder`) behind:

    work = stand_upright(open_workspace("photos", "model", coam.load_matcher()))  # orientation/
    pairs = propose_pairs(work)                         # pairs.txt
    matched = match_photos(work, pairs)                 # matches.h5
    verified, cycles = verify_matches(work, matched)    # verified.h5
    graph = build_tracks(work, verified)                # refined.h5, database.db
    key = model_key(work.options, pairs, verified)
    models = map_photos(work, verified, graph, key)     # keypoints.h5, sparse/
    summary = write_summary(work, models, verified, cycles, graph, key)  # summary.json, model.html
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from coam.errors import DataError
from coam.sfm.colmap_model import model_figures, model_poses, read_model
from coam.sfm.descriptors import Described, Descriptors, describe_all
from coam.sfm.interchange.colmap import write_database
from coam.sfm.mapping.loop_closure import finish_model, remove_misplaced
from coam.sfm.mapping.mapper import Legs, MapperInput, run_mapper
from coam.sfm.mapping.model_checks import ConsistencyCheck, listed, model_warnings
from coam.sfm.mapping.model_files import write_model_page, write_models
from coam.sfm.mapping.options import MapperOptions
from coam.sfm.mapping.world_scale import from_distances, from_gps, read_distances
from coam.sfm.matching.match_pairs import match_pairs
from coam.sfm.matching.orientation import TurnedBack, find_turns
from coam.sfm.matching.stamps import descriptor_key, recorded_text, recorded_values, text_digest
from coam.sfm.pairs import choose_pairs, read_pairs, write_pairs
from coam.sfm.settings import claim_folder, write_settings
from coam.sfm.tracks.align_graph import align_graph
from coam.sfm.tracks.match_graph import (
    MatchGraph,
    build_graph,
    find_places,
    graph_of_place,
    graph_of_strong_pairs,
    growing_order,
    longest_tracks,
    place_keypoints,
    save_keypoints,
    well_spread_tracks,
)
from coam.sfm.verification.focal import calibrate
from coam.sfm.verification.path_consistency import strong_pairs, trusted_pairs
from coam.sfm.verification.rotation_cycles import CycleReport
from coam.sfm.verification.two_view import VerifiedMatches, verify_pairs
from coam.sfm.workspace import Say, SfmOptions, Workspace, open_workspace
from coam.store.atomic import atomic_folder, remove_folder, require_space
from coam.store.documents import read_json, write_sealed_json
from coam.store.journal import Pair, PairJournal
from coam.store.lock import folder_lock

Stage = Literal["pairs", "matches", "verification", "tracks", "model"]
SPACE_FOR_MAPPING = 64 << 20  # bytes: a database and models of some hundred photos


def run_sfm(
    photos: str | Path,
    output: str | Path,
    matcher: Any,
    options: SfmOptions | None = None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Reconstruct a folder of photos; gives the content of summary.json.

    matcher: `coam.Matcher` or anything with `match_many`.
    """
    return reconstruct(open_workspace(photos, output, matcher, options, say))


def reconstruct(work: Workspace, until: Stage = "model") -> dict[str, Any]:
    """Run all stages in a workspace; those whose results are there and up to date compute nothing.

    until: the last one to run; where that is not the model there is no summary, and {} is given.
    """
    with folder_lock(work.files.root):
        return _reconstruct(work, until)


def _reconstruct(work: Workspace, until: Stage) -> dict[str, Any]:
    work = stand_upright(work)
    pairs = propose_pairs(work)
    if until == "pairs":
        return {}
    with closing(match_photos(work, pairs)) as matched:
        if until == "matches":
            return {}
        work.say("matched; verifying pairs")
        verified, cycles = verify_matches(work, matched)
        if until == "verification":
            return {}
        if until == "tracks":
            build_tracks(work, verified)
            return {}
        key = model_key(work.options, pairs, verified)
        finished = repair_model(work, verified, key)
        if finished is not None:
            write_settings(work.files, work.matcher, work.options)
            summary = finished
        else:
            graph = build_tracks(work, verified)
            models = map_photos(work, verified, graph, key)
            summary = write_summary(work, models, verified, cycles, graph, key)
    if summary["registered_images"] == 0:
        raise DataError(
            f"{work.photos.root}: no 3D model comes of {counted(summary['verified_pairs'], 'verified pair')};"
            " take photos from different places, not only in different directions"
        )
    if finished is not None:
        work.say("the model is up to date")
    return summary


def repair_model(work: Workspace, verified: VerifiedMatches, key: str) -> dict[str, Any] | None:
    """The summary of a finished model of `key`, none of whose files is damaged any more.

    None where there is none, or where models themselves are damaged: those must be mapped again.
    """
    files = work.files
    summary = files.read_summary(key)
    damaged = [] if summary is None else files.damaged(summary)
    if damaged:
        work.say(f"damaged or missing in {files.root}, made again: {listed(damaged, 8)}")
    if summary is None or any(name.startswith(files.sparse.name) for name in damaged):
        return None
    if damaged:
        save_keypoints(build_tracks(work, verified).keypoints, files.keypoints)  # and the database
        if files.model.is_dir():
            write_model_page(read_model(files.model), files.page)
        summary["files"] = files.checksums()
        write_sealed_json(files.summary, summary)
    return summary


def stand_upright(work: Workspace) -> Workspace:
    """The workspace, in which photos that lie on their side are known and matched as upright copies.

    Matchers that cannot compare turned photos, and `orientation="as-is"`, leave all as they are.
    """
    if work.options.orientation == "as-is" or not hasattr(work.matcher, "turn_scout"):
        return work
    turns = find_turns(
        work.matcher.turn_scout(),
        work.matcher,
        work.photos,
        work.files.orientation,
        show_progress=work.show_progress,
        workers=work.workers,
        load=work.load,
    )
    if turns:
        named = [f"{name} ({90 * turn} degrees)" for name, turn in sorted(turns.items())]
        work.say(f"lie on their side, matched upright: {listed(named, 8)}")
    return replace(work, turns=turns)


def propose_pairs(work: Workspace, given: Sequence[Pair] | None = None) -> list[Pair]:
    """Choose the pairs to match, and write them down. given: instead of those that the options propose.

    From here on matches of this matcher come into the folder: everything must have been checked before.
    """
    options, names = work.options, work.photos.names
    described: list[Described] = []

    def describe(photos: Mapping[str, Path]) -> Descriptors:
        key = descriptor_key(work.matcher)
        described.append(describe_all(photos, work.matcher, key, work.workers, work.load))
        return described[-1].vectors

    if given:
        pairs, how = list(given), "given"
    elif options.pairs_file is not None:
        pairs, how = read_pairs(options.pairs_file, names), f"from {options.pairs_file}"
    else:
        paths = {photo.name: photo.path for photo in work.upright.photos}
        able = describe if hasattr(work.matcher, "global_descriptor") else None
        pairs, how = choose_pairs(paths, able, options.pairing, options.neighbours, work.reference)
    known = set(names)
    pairs = [pair for pair in pairs if known.issuperset(pair)]
    if not pairs and work.reference is not None:
        raise DataError(f"the reference gives no pairs of its photos ({how}); give them with --pairs")
    claim_folder(work.files, work.matcher, options, work.say)
    write_pairs(pairs, work.files.pairs)
    for found in described:
        found.save(work.files.descriptors)  # for localization
    posed = "" if work.reference is None else " with known poses"
    work.say(f"{len(names)} photos{posed}, {counted(len(pairs), 'pair')} ({how})")
    return pairs


def match_photos(work: Workspace, pairs: Sequence[Pair]) -> PairJournal:
    """Match the pairs that are not matched yet; gives the journal of all of them, to be closed."""
    journal = match_pairs(
        work.matcher, work.upright, pairs, work.files.matches, work.show_progress, work.workers, work.load
    )
    if journal.damaged:
        work.say(f"damaged in {work.files.matches}, matched again: {counted(journal.damaged, 'record')}")
    if work.turns:
        journal.close()
        return TurnedBack(work.files.matches, work.turns)
    return journal


def verify_matches(work: Workspace, matched: PairJournal) -> tuple[VerifiedMatches, CycleReport]:
    """Two-view verification of all pairs, without those that contradict stronger ones.

    Estimates unknown focal lengths, and writes them into the workspace's cameras.
    """
    options, cameras = work.options, work.cameras.by_name
    target, strictness = work.files.verified, options.verify
    verified = verify_pairs(
        matched, cameras, target, strictness, work.masks, work.workers, work.show_progress
    )
    verified, calibrated = calibrate(verified, cameras, options.focal)
    cycle_error = (
        options.cycle_error if calibrated else max(options.cycle_error, options.uncalibrated_cycle_error)
    )
    verified, cycles = trusted_pairs(verified, cycle_error, options.path_consistency)
    accepted = len(verified.accepted)
    work.say(line_about_pairs(accepted, len(verified.geometries) - accepted, len(cycles.removed)))
    if accepted == 0:
        raise DataError(
            f"{work.photos.root}: no two of the {len(work.photos.photos)} photos show the same place with "
            "enough matches; take photos with more overlap"
        )
    return verified, cycles


def build_tracks(work: Workspace, verified: VerifiedMatches) -> MatchGraph:
    """Chain matches into tracks, place their keypoints as `options.tracks` says, write the database."""
    options = work.options
    require_space(work.files.root, SPACE_FOR_MAPPING)
    graph = build_graph(work.photos.names, verified)
    if options.tracks == "refined":
        work.say("aligning matches in the photos")
        stamps = {pair: verified.matched.read(pair).stamp for pair in graph.pairs}
        graph = align_graph(graph, work.photos.path, stamps, work.files.refined, options.align, work.workers)
    graph = place_keypoints(graph, None if options.tracks == "quantised" else options.merge)
    write_database(work.files.database, graph, verified.geometries, work.cameras)
    return graph


def map_photos(work: Workspace, verified: VerifiedMatches, graph: MatchGraph, key: str) -> list[Any]:
    """Build models, largest first: mapping, checks against the pairs, loop closure, bundle adjustment.

    key: of what they are made from; mapped models of another key, which a killed run left, are not used.
    """
    work.say(f"{graph.keypoints.track_count} tracks; building the model")
    options = work.options.mapper
    strong = strong_pairs(verified.evidence(), options.strong_share)
    check = ConsistencyCheck(verified, graph, strong, work.options.verify, options.checks)
    constant = [index + 1 for index in work.cameras.given]  # ids as `write_database` gives them
    given = MapperInput(work.files.database, options, constant, check)
    mapped, legs = work.files.mapped(key), work.files.legs(key)
    for old in (*work.files.root.glob("mapped-*"), *work.files.root.glob("legs-*")):
        if old not in (mapped, legs):
            remove_folder(old)
    with tempfile.TemporaryDirectory(prefix="coam-") as scratch:
        if options.is_large(len(work.photos.photos)):
            well_spread = Path(scratch) / "well_spread.db"
            write_database(
                well_spread, mapped_tracks(graph, options, True), verified.geometries, work.cameras
            )
            given = replace(given, well_spread=well_spread)
        if not mapped.is_dir():
            smallest = min(options.min_model_size, len(work.photos.photos))
            few = replace(given, options=replace(options, min_model_size=smallest))
            with atomic_folder(mapped) as temporary:
                _map_into(temporary, legs, few, work, verified, graph)
        places = sorted(mapped.iterdir(), key=lambda path: int(path.name))
        models = [finish_model(read_model(place), given) for place in places]
    place_in_world(work, models)
    write_model_folder(work, models, graph)
    for folder in (mapped, legs):
        remove_folder(folder)
    return models


def place_in_world(work: Workspace, models: Sequence[Any]) -> None:
    """Give models metres, by GPS or measured distances as the options say; world.json says how.

    A model for which that does not do stays as it is, and a line says why.
    """
    options = work.options
    report: dict[str, Any] = {}
    for index, model in enumerate(models):
        try:
            if options.georeference:
                places = {photo.name: photo.gps for photo in work.photos.photos if photo.gps is not None}
                world = from_gps(model, places)
            elif options.distances is not None:
                world = from_distances(model, read_distances(options.distances))
            else:
                break
        except DataError as error:
            work.say(f"model {index} stays without a scale: {error}")
            continue
        world.apply(model)
        report[str(index)] = world.report
    if report:
        write_sealed_json(work.files.world, report)
    else:
        work.files.world.unlink(missing_ok=True)


def _map_into(
    folder: Path,
    legs: Path,
    given: MapperInput,
    work: Workspace,
    verified: VerifiedMatches,
    graph: MatchGraph,
) -> None:
    """Map every place by itself, without misplaced photos; models largest first: 0, 1, ..."""
    models = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for number, names in enumerate(find_places(graph, given.options.min_matches)):
            if len(names) < given.options.min_model_size:
                break
            own, of_place = graph_of_place(graph, names), given
            if given.options.is_large(len(names)):
                of_place = replace(given, legs=Legs(legs / str(number), growing_order(own), work.say))
            models += _map_place(Path(scratch), of_place, work, verified, own)
    placed = []
    for found in models:
        model, removed = remove_misplaced(found, given)
        for name in removed:
            work.say(f"{name}: taken out, what it shares with others contradicts its place or theirs")
        placed.append(model)
    for index, model in enumerate(sorted(placed, key=lambda model: -model.num_reg_images())):
        (folder / str(index)).mkdir()
        model.write(folder / str(index))


def _map_place(
    scratch: Path, given: MapperInput, work: Workspace, verified: VerifiedMatches, graph: MatchGraph
) -> list[Any]:
    """Models of one place, from the longest tracks of all its pairs and of the strong ones."""
    databases = [scratch / name for name in ("all.db", "strong.db")]
    strong = graph_of_strong_pairs(graph, given.options.strong_share)
    for database, chosen in zip(databases, (graph, strong), strict=True):
        few = mapped_tracks(chosen, given.options, given.legs is not None)
        write_database(database, few, verified.geometries, work.cameras)
    return run_mapper(given, databases)


def mapped_tracks(graph: MatchGraph, options: MapperOptions, large: bool) -> MatchGraph:
    """The graph with the tracks from which cameras are found. large: those for a place of many photos."""
    if not large:
        return longest_tracks(graph, options.matches_per_pair)
    own = options.large
    return well_spread_tracks(graph, own.tracks_per_photo, own.tracks_per_pair, own.cells)


def write_model_folder(work: Workspace, models: Sequence[Any], graph: MatchGraph) -> None:
    """Write models, largest first, with the keypoints that lift new matches to their points."""
    save_keypoints(graph.keypoints, work.files.keypoints)
    write_models(models, work.photos, work.files.sparse)


def model_key(options: SfmOptions, pairs: Iterable[Pair], verified: VerifiedMatches) -> str:
    """What a model is made from: matches, inliers and options."""
    parts = []
    for pair in sorted(pairs):
        geometry = verified.geometries.get(pair)
        inliers = -1 if geometry is None else len(geometry.inliers)
        parts.append(f"{verified.matched.read(pair).stamp}{inliers}")
    # Workers and threads decide how fast a model is made; -1 is what models from before were stamped with.
    same = replace(options, workers=0, mapper=replace(options.mapper, threads=-1))
    return text_digest("".join([*parts, recorded_text(same)]))


def write_summary(
    work: Workspace,
    models: Sequence[Any],
    verified: VerifiedMatches,
    cycles: CycleReport,
    graph: MatchGraph,
    key: str = "",
) -> dict[str, Any]:
    """Write settings.json, model.html and summary.json: figures, warnings, what was left out; gives it."""
    options, photos = work.options, work.photos
    write_settings(work.files, work.matcher, options)
    registered = sorted(model_poses(models[0])) if models else []
    placed = {name for model in models for name in model_poses(model)}
    missing = [name for name in photos.names if name not in placed]
    warnings = ["no model could be built from the verified pairs; take more photos with more overlap"]
    if models:
        warnings = model_warnings(models[0], verified, cycles, options.verify, options.mapper.checks)
        for index, model in enumerate(models[1:], 1):
            own = model_warnings(model, verified, cycles, options.verify, options.mapper.checks)
            warnings += [f"model {index}: {line}" for line in own if line not in warnings]
        if len(models) > 1:
            sizes = ", ".join(str(model.num_reg_images()) for model in models)
            warnings.append(
                f"the photos fall into {len(models)} models of {sizes} photos; they may show different places"
            )
        warnings += lines_about_missing(missing, verified.accepted)
        write_model_page(models[0], work.files.page)
    summary = {
        "photos": len(photos.photos),
        **model_figures(*models[:1]),
        "models": [model_figures(model) for model in models],
        "verified_pairs": len(verified.accepted),
        "contradicted_pairs": len(cycles.removed),
        "triangles": {"all": cycles.triangles, "closing": cycles.closing},
        "tracks": graph.keypoints.track_count,
        "registered": registered,
        "not_registered": missing,
        "left_out": list(photos.left_out),
        "turned": dict(work.turns),
        "world": _world_report(work),
        "warnings": warnings,
        "options": recorded_values(options),
        "seconds": round(time.monotonic() - work.began, 1),
        "photos_folder": os.path.relpath(photos.root, work.files.root),  # for `coam localize`
        "key": key,
        "files": work.files.checksums(),
    }
    write_sealed_json(work.files.summary, summary)
    return summary


def _world_report(work: Workspace) -> dict[str, Any]:
    """The content of world.json; empty where no model has a scale."""
    return dict(read_json(work.files.world, dict)) if work.files.world.is_file() else {}


def counted(number: int, noun: str) -> str:
    """1 pair, 2 pairs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def line_about_pairs(accepted: int, refused: int, removed: int) -> str:
    """What became of the matched pairs, in numbers that add up."""
    return (
        f"{counted(accepted + refused + removed, 'pair')}: {accepted} verified, {refused} not, "
        f"{removed} contradicted or not confirmed by stronger ones"
    )


def lines_about_missing(missing: Sequence[str], accepted: Iterable[Pair]) -> list[str]:
    """Which photos are in no model, and why."""
    verified = {name for pair in accepted for name in pair}
    alone = [name for name in missing if name not in verified]
    unplaced = [name for name in missing if name in verified]
    lines = []
    if alone:
        lines.append(
            f"in no model, because no pair with them was verified: {listed(alone, 8)}; "
            "take some between views that are far apart"
        )
    if unplaced:
        lines.append(
            f"in no model, though some pairs were verified: {listed(unplaced, 8)}; "
            "more photos between them and the others may help"
        )
    return lines
