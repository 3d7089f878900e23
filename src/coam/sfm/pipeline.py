"""`coam sfm`: a folder of photos in, a model folder out. Kill it at any time and start it again.

The model folder:
    settings.json  the matcher and the options that it was made with
    pairs.txt      the pairs that were matched
    matches.h5     matches of all pairs: grid ids, sub-pixel offsets, scores
    verified.h5    two-view geometries
    refined.h5     verified matches aligned in the photos
    keypoints.h5   refined keypoints: what lifts new matches to 3D (`coam localize`)
    database.db    the same for COLMAP
    sparse/0, 1..  models, largest first: COLMAP binary, text/, points.ply (`--dense`: dense.ply)
    model.html     point cloud and cameras, opens in any browser
    summary.json   the figures, warnings and what was left out
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from coam.errors import ConfigError, DataError
from coam.sfm import pairs as pairing
from coam.sfm.alignment import model_poses
from coam.sfm.cycles import CycleReport
from coam.sfm.database import write_database
from coam.sfm.detours import DetourOptions, strong_pairs
from coam.sfm.intrinsics import CameraChoice, camera_for_photo, given_cameras, make_cameras
from coam.sfm.journal import Pair, PairJournal, remove_leftovers, replacing, require_space
from coam.sfm.keypoints import (
    Keypoints,
    Links,
    collect_keypoints,
    links_of_strong_pairs,
    load_keypoints,
    place_keypoints,
    save_keypoints,
    strongest_links,
)
from coam.sfm.links import agreement, cut_off, doubts, misplaced, points_apart
from coam.sfm.mapping import (
    Judgement,
    MapperOptions,
    figures,
    finish,
    run_mapper,
    settle,
)
from coam.sfm.match_pairs import looking_once, match_pairs
from coam.sfm.model_files import write_model_page, write_models
from coam.sfm.photos import Photo, PhotoFolder, read_masks, read_photo_folder, require_enough_photos
from coam.sfm.refine import AlignOptions, refine_links
from coam.sfm.settings import claim_folder, refuse_other_matches, write_settings
from coam.sfm.tracks import MergeOptions
from coam.sfm.trust import pair_evidence, trusted_pairs
from coam.sfm.verify import VerifiedPair, VerifyOptions

STRONG_SHARE = (
    0.25  # of a photo's best pair: weaker pairs are left out where all together give no right model
)
SPACE_FOR_MAPPING = 64 << 20  # bytes: a database and models of some hundred photos
Say = Callable[[str], None]
# (photos, pairs, output file) -> finished journal; how matching is spread over processes or machines
MatchAll = Callable[[PhotoFolder, Sequence[Pair], Path], PairJournal]


Tracks = Literal["quantised", "merged", "refined"]


@dataclass(frozen=True)
class SfmOptions:
    """Everything that changes a model."""

    # "model" and "poses" take pairs from a model with known poses, see `coam.sfm.hloc.triangulate`
    pairing: Literal["auto", "exhaustive", "sequential", "retrieval", "model", "poses"] = "auto"
    pairs_file: str | None = None  # two names per line; replaces pairing
    neighbours: int = 20  # retrieval: similar photos matched with each photo
    cameras: CameraChoice = field(default_factory=CameraChoice)
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    cycle_error: float = 15.0  # degrees a triangle of relative rotations may fail to close
    detours: DetourOptions = field(default_factory=DetourOptions)
    tracks: Tracks = "refined"  # how keypoints get sub-pixel positions
    align: AlignOptions = field(default_factory=AlignOptions)
    merge: MergeOptions = field(default_factory=MergeOptions)
    mapper: MapperOptions = field(default_factory=MapperOptions)
    masks: str | None = None  # folder of NAME.png beside the photos' names; black pixels are not used
    workers: int = 1  # threads of verification


def run_sfm(
    photos: str | Path,
    output: str | Path,
    matcher: Any,
    options: SfmOptions | None = None,
    say: Say = lambda line: None,
    match_all: MatchAll | None = None,
    show_progress: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Reconstruct a folder of photos; gives the content of summary.json.

    matcher: `coam.Matcher` or anything with `match_many`. match_all: takes over the matching, see
    `coam.distributed`. overwrite: match again where `output` holds matches of another matcher, instead of
    refusing.
    """
    options, matcher = options or SfmOptions(), looking_once(matcher)
    output = Path(output)
    began = time.monotonic()
    remove_leftovers(output)
    check_options(options)
    if not overwrite:
        refuse_other_matches(output, matcher)
    folder = read_photo_folder(photos)
    for line in folder.left_out:
        say(f"left out: {line}")
    require_enough_photos(folder)
    cameras, camera_of = make_cameras(folder.photos, options.cameras)
    read_masks(folder, options.masks)  # what is wrong with them is known now, and not after hours of matching
    wanted, how = propose_pairs(folder, matcher, options)
    claim_folder(output, matcher, options, say)
    pairing.write_pairs(wanted, output / "pairs.txt")
    say(f"{len(folder.photos)} photos, {counted(len(wanted), 'pair')} ({how})")
    if match_all is None:
        matched = match_pairs(
            matcher, *paths_and_digests(folder), wanted, output / "matches.h5", show_progress
        )
    else:
        matched = match_all(folder, wanted, output / "matches.h5")
    say("matched; verifying pairs")
    verified, cycles = trusted_pairs(folder, matched, cameras, camera_of, output, options, show_progress)
    accepted = sum(geometry.accepted for geometry in verified.values())
    say(line_about_pairs(accepted, len(verified) - accepted, len(cycles.removed)))
    if accepted == 0:
        matched.close()
        raise DataError(
            f"{folder.root}: no two of the {len(folder.photos)} photos show the same place with enough "
            f"matches; "
            "take photos with more overlap"
        )
    key = _model_key(matched, wanted, verified, options)
    summary_path = output / "summary.json"
    done = _finished_summary(summary_path, key)
    if done is not None:
        matched.close()
        write_settings(output, matcher, options)
        require_model(done, folder)
        say("the model is up to date")
        return done
    models, keypoints = build_models(folder, matched, verified, cameras, camera_of, output, options, key, say)
    write_settings(output, matcher, options)
    summary = summarise(folder, models, matched, verified, cycles, keypoints, options)
    matched.close()
    summary["seconds"] = round(time.monotonic() - began, 1)
    summary["photos_folder"] = os.path.relpath(folder.root, output)  # `coam localize` needs the photos again
    summary["key"] = key
    write_model_page(models, output / "model.html", say)
    with replacing(summary_path) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
    require_model(summary, folder)
    return summary


def check_options(options: SfmOptions) -> None:
    """Refuse what can be refused before any photo is read."""
    camera_for_photo(Photo("any", Path(), (640, 480), ""), options.cameras.model)
    if options.pairs_file is not None:
        pairing.read_pairs(options.pairs_file)
    if options.masks is not None and not Path(options.masks).is_dir():
        raise DataError(f"{options.masks}: no such folder; give one with a NAME.png for each photo to mask")


def counted(number: int, noun: str) -> str:
    """1 pair, 2 pairs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def line_about_pairs(accepted: int, refused: int, removed: int) -> str:
    """What became of the matched pairs, in numbers that add up."""
    return (
        f"{counted(accepted + refused + removed, 'pair')}: {accepted} verified, {refused} not, "
        f"{removed} contradicted or not confirmed by stronger ones"
    )


def require_model(summary: Mapping[str, Any], folder: PhotoFolder) -> None:
    """One clear line when verified pairs gave no model."""
    if summary["registered_images"] == 0:
        raise DataError(
            f"{folder.root}: no 3D model comes of {counted(summary['verified_pairs'], 'verified pair')}; "
            "take photos from different places, not only in different directions"
        )


def propose_pairs(
    folder: PhotoFolder, matcher: Any, options: SfmOptions, reference: Any = None
) -> tuple[list[Pair], str]:
    """The pairs to match, and how they were chosen in words. reference: a pycolmap model of the photos."""
    names = folder.names
    if options.pairs_file is not None:
        return pairing.read_pairs(options.pairs_file, names), f"from {options.pairs_file}"
    if options.pairing == "exhaustive":
        return pairing.exhaustive_pairs(names), "all pairs"
    if options.pairing == "sequential":
        return pairing.sequential_pairs(names), "neighbours in the order of names"
    if reference is not None and options.pairing in ("auto", "model", "poses"):
        return pairing.reference_pairs(reference, names, options.pairing, options.neighbours)
    if options.pairing in ("model", "poses"):
        raise ConfigError(f"--pairing {options.pairing} takes pairs from a model; give one with --reference")
    if options.pairing not in ("auto", "retrieval"):
        raise ConfigError(
            f"there is no pairing {options.pairing}; choose auto, exhaustive, sequential or retrieval"
        )
    limit = 0 if options.pairing == "retrieval" else pairing.EXHAUSTIVE_UP_TO
    descriptor = getattr(matcher, "global_descriptor", None)
    return pairing.choose_pairs(
        names, {n: folder.path(n) for n in names}, descriptor, options.neighbours, limit
    )


def paths_and_digests(folder: PhotoFolder) -> tuple[dict[str, Path], dict[str, str]]:
    """photo name -> file, and -> digest of its bytes."""
    return {p.name: p.path for p in folder.photos}, {p.name: p.digest for p in folder.photos}


def _model_key(
    matched: PairJournal, wanted: Sequence[Pair], verified: Mapping[Pair, VerifiedPair], options: SfmOptions
) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for pair in sorted(wanted):
        digest.update(matched.read(pair).stamp.encode())
        digest.update(str(len(verified[pair].inliers) if pair in verified else -1).encode())
    digest.update(repr(replace(options, workers=0)).encode())  # speed, not results
    return digest.hexdigest()


def _finished_summary(path: Path, key: str) -> dict[str, Any] | None:
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    complete = all((path.parent / name).exists() for name in ("sparse", "keypoints.h5", "database.db"))
    return summary if summary.get("key") == key and complete else None


def make_tracks(
    folder: PhotoFolder,
    matched: PairJournal,
    verified: Mapping[Pair, VerifiedPair],
    output: Path,
    options: SfmOptions,
    say: Say,
) -> tuple[Keypoints, Links]:
    """Keypoints where `options.tracks` puts them, and the links between them."""
    keypoints, links = collect_keypoints(folder.names, matched, verified)
    if options.tracks == "refined":
        say("aligning matches in the photos")
        paths, _ = paths_and_digests(folder)
        stamps = {pair: matched.read(pair).stamp for pair in links.pairs}
        links = refine_links(paths, keypoints, links, stamps, output / "refined.h5", options.align)
    variant: Literal["quantised", "merged"] = "quantised" if options.tracks == "quantised" else "merged"
    return place_keypoints(keypoints, links, variant, options.merge)


def count_tracks(keypoints: Keypoints) -> int:
    """How many tracks the keypoints are in."""
    return int(keypoints.tracks.max(initial=-1)) + 1


def build_models(
    folder: PhotoFolder,
    matched: PairJournal,
    verified: Mapping[Pair, VerifiedPair],
    cameras: Sequence[Any],
    camera_of: Sequence[int],
    output: Path,
    options: SfmOptions,
    key: str,
    say: Say,
) -> tuple[list[Any], Keypoints]:
    """Tracks, database, mapping, bundle adjustment; the result lies in `output`."""
    import pycolmap

    require_space(output, SPACE_FOR_MAPPING)
    keypoints, links = make_tracks(folder, matched, verified, output, options, say)
    say(f"{count_tracks(keypoints)} tracks; building the model")
    write_database(output / "database.db", keypoints, links, verified, cameras, camera_of)
    # ids as `write_database` gives them
    given = [index + 1 for index in given_cameras(folder.photos, camera_of, options.cameras)]
    smallest = min(options.mapper.min_model_size, len(folder.photos))
    mapped = output / f"mapped-{key[:12]}"
    for old in output.glob("mapped-*"):
        if old != mapped:
            shutil.rmtree(old, ignore_errors=True)
    strong = strong_pairs(pair_evidence(matched, verified), STRONG_SHARE)

    def judge(model: Any) -> Judgement:
        said = agreement(model, matched, verified, options.verify)
        wrong = misplaced(said)
        if wrong:
            wrong += cut_off(sorted(set(model_poses(model)) - set(wrong)), strong)
        apart = points_apart(model, keypoints, links)
        agreeing = sum(evidence for pair, evidence in said.items() if evidence > 0 and pair not in apart)
        return Judgement(wrong, agreeing, sum(map(abs, said.values())) - agreeing)

    if not mapped.is_dir():
        mapper = replace(options.mapper, min_model_size=smallest)
        with replacing(mapped) as temporary:
            (temporary / "work").mkdir(parents=True)
            databases = [temporary / "work" / name for name in ("all.db", "strong.db")]
            sure = links_of_strong_pairs(links, STRONG_SHARE)
            for database, chosen in zip(databases, (links, sure), strict=True):
                few = strongest_links(keypoints, chosen, options.mapper.links_per_pair)
                write_database(database, keypoints, few, verified, cameras, camera_of)
            found = run_mapper(databases, temporary / "work", mapper, judge, given)
            for index, mapped_model in enumerate(found):
                model, gone = settle(mapped_model, output / "database.db", mapper, judge, given)
                for name in gone:
                    say(f"{name}: taken out, what it shares with others contradicts its place or theirs")
                (temporary / str(index)).mkdir()
                model.write(temporary / str(index))
            shutil.rmtree(temporary / "work", ignore_errors=True)
    models = [pycolmap.Reconstruction(path) for path in sorted(mapped.iterdir(), key=lambda p: int(p.name))]
    save_keypoints(keypoints, output / "keypoints.h5")
    models = [finish(model, output / "database.db", options.mapper, judge, given) for model in models]
    write_models(models, folder, output)
    shutil.rmtree(mapped, ignore_errors=True)
    return models, keypoints


def summarise(
    folder: PhotoFolder,
    models: Sequence[Any],
    matched: PairJournal,
    verified: Mapping[Pair, VerifiedPair],
    cycles: CycleReport,
    keypoints: Keypoints,
    options: SfmOptions,
) -> dict[str, Any]:
    """The content of summary.json."""
    registered = sorted(models[0].image(i).name for i in models[0].reg_image_ids()) if models else []
    missing = [name for name in folder.names if name not in registered]
    warnings = ["no model could be built from the verified pairs; take more photos with more overlap"]
    if models:
        warnings = doubts(models[0], matched, verified, cycles, options.verify)
    if len(models) > 1:
        sizes = ", ".join(str(model.num_reg_images()) for model in models)
        warnings.append(
            f"the photos fall into {len(models)} models of {sizes} photos; they may show different places"
        )
    if models:
        warnings += lines_about_missing(missing, verified)
    return {
        "photos": len(folder.photos),
        **figures(models),
        "models": [figures([model]) for model in models],
        "verified_pairs": sum(geometry.accepted for geometry in verified.values()),
        "contradicted_pairs": len(cycles.removed),
        "triangles": {"all": cycles.triangles, "closing": cycles.closing},
        "tracks": count_tracks(keypoints),
        "registered": registered,
        "not_registered": missing,
        "left_out": list(folder.left_out),
        "warnings": warnings,
        "options": asdict(options),
    }


def lines_about_missing(missing: Sequence[str], verified: Mapping[Pair, VerifiedPair]) -> list[str]:
    """Which photos are not in the model, and why."""
    linked = {name for pair, geometry in verified.items() if geometry.accepted for name in pair}
    alone = [name for name in missing if name not in linked]
    unplaced = [name for name in missing if name in linked]
    lines = []
    if alone:
        lines.append(
            f"not in the model, because no pair with them was verified: {_named(alone)}; photos are compared "
            "upright, so turn those that lie on their side, and take some between views that are far apart"
        )
    if unplaced:
        lines.append(
            f"not in the model, though some pairs were verified: {_named(unplaced)}; "
            "more photos between them and the others may help"
        )
    return lines


def _named(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def load_model(folder: str | Path, number: int = 0) -> tuple[Any, Keypoints]:
    """The pycolmap model and the keypoints of a model folder."""
    import pycolmap

    folder = Path(folder)
    place = folder / "sparse" / str(number)
    if not (place / "images.bin").is_file():
        raise DataError(f"{folder}: holds no finished model; make one with: coam sfm PHOTOS -o {folder}")
    return pycolmap.Reconstruction(place), load_keypoints(folder / "keypoints.h5")
