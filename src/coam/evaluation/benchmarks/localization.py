"""Localization of queries: share within (0.25 m, 2 deg), (0.5 m, 5 deg), (5 m, 10 deg).

`localization` layout: ROOT/images/ (all photos), ROOT/sparse/ (a COLMAP model, text or binary, with the true
poses of all photos, in metres), ROOT/queries.txt (names of the queries, one per line, optionally followed by
the camera as COLMAP writes it: MODEL WIDTH HEIGHT PARAMS).

`aachen` layout (Aachen Day-Night as distributed for visuallocalization.net): ROOT/images_upright/db/.. (or
ROOT/images/images_upright/..), ROOT/images_upright/query/night/.., and the query lists
ROOT/queries/night_time_queries_with_intrinsics.txt (and day_..). The model of v1.1 is the COLMAP model
ROOT/3D-models/aachen_v_1_1/; that of v1.0, which the paper used (98 night queries), is
ROOT/3D-models/aachen_cvpr2018_db.nvm with ROOT/3D-models/database_intrinsics.txt. Where both are there,
--release says which; v1.0 then takes the queries of its own list (v1.1 has 191 at night). Where ROOT holds
image_pairs_to_match.txt (the benchmark for local features, which the paper followed), those pairs are matched
and no others. The poses of the queries are not public: the submission file goes to the evaluation server.

Protocol (Sattler et al., CVPR 2018): the reference photos keep their GIVEN poses, points are triangulated
from our matches of pairs that see common points; the queries are located in that model (PnP + RANSAC). A
query counts where both its position error and its rotation error are within the threshold; a refused query
counts as a failure. With --map the reference photos are reconstructed from scratch instead, and the model is
laid over the truth by the similarity that fits its camera centres best: that measures mapping and
localization together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.evaluation.matchers.by_name import MatcherSpec
from coam.evaluation.pairs import listed_lines
from coam.evaluation.reports.html import page, provenance, table
from coam.evaluation.reports.text import format_value
from coam.evaluation.runner import Benchmark, Option, environment, write_json
from coam.geometry.alignment import Pose, align_poses, camera_centres
from coam.geometry.pose import rotation_error
from coam.sfm.interchange.nvm import nvm_to_colmap, read_nvm_photos
from coam.store.atomic import write_text

Array = npt.NDArray[np.float64]
Say = Callable[[str], None]
EXHAUSTIVE_UP_TO = 60  # photos
THRESHOLDS = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))  # metres, degrees


@dataclass(frozen=True)
class LocalizationScene:
    """Photos, which of them are queries, and the truth."""

    images: Path
    reference: Path  # COLMAP model (or .nvm file) with the poses of the reference photos
    names: list[str]  # reference photos
    queries: dict[str, str | None]  # name -> camera, where given
    truth: dict[str, Pose]  # true poses of whatever has one
    cameras: dict[str, str] = field(default_factory=dict)  # of the reference photos, where it is an .nvm file
    pairs: tuple[tuple[str, str], ...] = ()  # what is to be matched; none: all pairs that share points


def load_localization(root: Path) -> LocalizationScene:
    """Read a folder in the `localization` layout."""
    for needed in ("images", "sparse", "queries.txt"):
        if not (root / needed).exists():
            raise DataError(
                f"{root} lacks {needed}; localization wants images/, sparse/ (COLMAP) and queries.txt"
            )
    truth = _read_poses(root / "sparse")
    queries = _read_queries(root / "queries.txt", root / "images")
    unknown = [name for name in queries if name not in truth]
    if unknown:
        raise DataError(f"queries.txt: {unknown[0]} has no pose in sparse/; add it or remove the query")
    names = [n for n in sorted(truth) if n not in queries and (root / "images" / n).is_file()]
    return LocalizationScene(root / "images", root / "sparse", names, queries, truth)


def load_aachen(root: Path, when: str = "night", release: str | None = None) -> LocalizationScene:
    """Read Aachen Day-Night; `when` is night or day, `release` 1.0, 1.1 or None (the one that is there)."""
    models = root / "3D-models"
    places = {"1.1": models / "aachen_v_1_1", "1.0": models / "aachen_cvpr2018_db.nvm"}
    if release is not None and release not in places:
        raise ConfigError(f"--release {release}: choose {' or '.join(places)}")
    release = release or next((name for name, place in places.items() if place.exists()), "1.1")
    reference = places[release]
    images = root / "images" / "images_upright"
    images = images if images.is_dir() else root / "images_upright"
    listing = root / "queries" / f"{when}_time_queries_with_intrinsics.txt"
    cameras = models / "database_intrinsics.txt"
    for needed in (images, reference, listing, *([cameras] if release == "1.0" else [])):
        if not needed.exists():
            raise DataError(
                f"{root} lacks {needed.relative_to(root)}; get Aachen Day-Night v{release} "
                "(images_upright, 3D-models, queries) from visuallocalization.net"
            )
    queries = _read_queries(listing, images)
    if release == "1.0":
        known = [photo.name for photo in read_nvm_photos(reference)]
    else:
        known = list(_read_poses(reference))
    names = [name for name in sorted(known) if name not in queries and (images / name).is_file()]
    given = (
        {name: " ".join(camera) for _, (name, *camera) in listed_lines(cameras)} if release == "1.0" else {}
    )
    wanted = root / "image_pairs_to_match.txt"
    pairs = _read_pairs(wanted, {*names, *queries}) if wanted.is_file() else ()
    return LocalizationScene(images, reference, names, queries, {}, given, pairs)


def _read_pairs(listing: Path, known: set[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of known names; what a list says of other queries is left out."""
    pairs = []
    for where, words in listed_lines(listing):
        if len(words) != 2:
            raise DataError(f"{where} has {len(words)} entries, wanted two photo names")
        if known.issuperset(words):
            pairs.append((words[0], words[1]))
    return tuple(pairs)


def _read_poses(folder: Path) -> dict[str, Pose]:
    from coam.sfm.colmap_model import model_poses, read_model, require_pycolmap

    require_pycolmap()
    return model_poses(read_model(folder))


def _read_queries(listing: Path, images: Path) -> dict[str, str | None]:
    queries: dict[str, str | None] = {}
    for where, (name, *camera) in listed_lines(listing):
        if not (images / name).is_file():
            raise DataError(f"{where}: {name} is not in {images.name}/")
        queries[name] = " ".join(camera) or None
    if not queries:
        raise DataError(f"{listing.name} names no query")
    return queries


def localization_recall(position: npt.ArrayLike, rotation: npt.ArrayLike) -> dict[str, float]:
    """Share of queries within each pair of thresholds; errors (N,) in metres, degrees, inf where refused."""
    metres, degrees = np.asarray(position, dtype=np.float64), np.asarray(rotation, dtype=np.float64)
    return {
        f"{limit:g} m, {angle:g} deg": float(((metres <= limit) & (degrees <= angle)).mean())
        for limit, angle in THRESHOLDS
    }


def aligned_errors(
    located: dict[str, Pose | None], model: dict[str, Pose], truth: dict[str, Pose]
) -> tuple[list[str], Array, Array]:
    """Names, position errors and rotation errors of the queries, after aligning the model to the truth."""
    names = sorted(set(model) & set(truth))
    if len(names) < 3:
        raise DataError(
            "fewer than three photos of the model have a true pose; the model cannot be laid over the truth"
        )
    scale, turn, shift = align_poses(model, truth, names)
    moved: dict[str, Pose | None] = {}
    for name, pose in located.items():
        moved[name] = None
        if pose is not None:
            centre, orientation = scale * turn @ (-pose[0].T @ pose[1]) + shift, pose[0] @ turn.T
            moved[name] = (orientation, -orientation @ centre)
    return pose_errors(moved, truth)


def pose_errors(located: dict[str, Pose | None], truth: dict[str, Pose]) -> tuple[list[str], Array, Array]:
    """Names, position errors and rotation errors of located queries; both poses are in one frame."""
    position, rotation = [], []
    for name, pose in located.items():
        if pose is None:
            position.append(np.inf)
            rotation.append(np.inf)
            continue
        apart = camera_centres({name: pose}, [name]) - camera_centres(truth, [name])
        position.append(float(np.linalg.norm(apart)))
        rotation.append(rotation_error(pose[0], truth[name][0]))
    return list(located), np.asarray(position), np.asarray(rotation)


def evaluate_localization(
    scene: LocalizationScene,
    spec: MatcherSpec,
    output: Path,
    *,
    from_scratch: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Build the model, locate the queries, compare with the truth where there is one; write the report."""
    from coam.sfm.colmap_model import model_poses
    from coam.sfm.localization.absolute_pose import write_poses
    from coam.sfm.localization.localize import Localizer
    from coam.sfm.matching.match_pairs import without_rematching
    from coam.sfm.photos import read_photo

    matcher = without_rematching(spec.create())
    reference = _reference_folder(scene, output / "reference")
    if scene.reference.suffix == ".nvm":
        given = output / "given_model"
        if not given.is_dir():
            nvm_to_colmap(scene.reference, scene.cameras, given)
        scene = replace(scene, reference=given)
    say(f"model of {len(scene.names)} photos")
    _build_model(scene, reference, output / "model", matcher, from_scratch, say)
    localizer = Localizer(output / "model", matcher, reference)
    answers = []
    for name, camera in scene.queries.items():
        photo, listed = read_photo(scene.images / name, name), partners(scene, name, localizer.names)
        lifted = localizer.lift(photo.path, listed) if scene.pairs else None
        answers.append(localizer.locate(photo, camera, lifted=lifted))
        say(f"{name}: {answers[-1].inliers} inliers {answers[-1].reason}")
    # The evaluation server knows queries by their file name alone.
    short = [replace(answer, name=Path(answer.name).name) for answer in answers]
    write_poses(short, output / "submission.txt")
    say(f"wrote {output / 'submission.txt'}")
    located = {answer.name: answer.pose for answer in answers}
    known = {name: pose for name, pose in located.items() if name in scene.truth}
    if from_scratch:
        names, position, rotation = aligned_errors(known, model_poses(localizer.model), scene.truth)
    else:
        names, position, rotation = pose_errors(known, scene.truth)
    refused = sum(pose is None for pose in located.values())
    figures = {"queries": float(len(located)), "refused": float(refused)}
    report = {
        "benchmark": "localization",
        "protocol": __doc__,
        "matcher": spec.identity | {"licence": spec.licence},
        "settings": {"from_scratch": from_scratch},
        "figures": (localization_recall(position, rotation) if names else {}) | figures,
        "queries": {n: [float(p), float(r)] for n, p, r in zip(names, position, rotation, strict=True)},
        "environment": environment(),
    }
    write_json(output / "report.json", report)
    write_text(output / "report.md", localization_text(report))
    write_text(output / "report.html", _page(report))
    return report


def partners(scene: LocalizationScene, query: str, names: list[str]) -> list[str]:
    """Photos of the model that the list of pairs wants matched with a query."""
    listed = [a if b == query else b for a, b in scene.pairs if query in (a, b)]
    return [name for name in dict.fromkeys(listed) if name in names]


def _build_model(
    scene: LocalizationScene, photos: Path, output: Path, matcher: Any, from_scratch: bool, say: Say
) -> None:
    from coam.sfm.known_poses import triangulate_known_poses
    from coam.sfm.pairs import exhaustive_pairs
    from coam.sfm.pipeline import run_sfm
    from coam.sfm.workspace import open_workspace

    if from_scratch:
        run_sfm(photos, output, matcher, say=say)
        return
    # A small set is matched completely; a large one along the points that its own model says are shared.
    pairs = exhaustive_pairs(scene.names) if len(scene.names) <= EXHAUSTIVE_UP_TO else None
    if scene.pairs:
        pairs = [pair for pair in scene.pairs if set(scene.names).issuperset(pair)]
    work = open_workspace(photos, output, matcher, say=say, reference=scene.reference)
    triangulate_known_poses(work, pairs)


def _reference_folder(scene: LocalizationScene, folder: Path) -> Path:
    """The reference photos alone, as links, because reconstruction takes a folder."""
    for name in scene.names:
        target = folder / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink((scene.images / name).resolve(), target)
    return folder


def localization_text(report: dict[str, Any]) -> str:
    """The figures, one per line."""
    lines = [f"localization: {report['matcher']['matcher']}"]
    lines += [f"{name:16s} {format_value(value)}" for name, value in report["figures"].items()]
    return "\n".join(lines) + "\n"


def _page(report: dict[str, Any]) -> str:
    figures = [[escape(name), format_value(value)] for name, value in report["figures"].items()]
    worst = sorted(report["queries"].items(), key=lambda item: -item[1][0])
    rows = [[escape(name), format_value(errors[0]), format_value(errors[1])] for name, errors in worst]
    body = "<h1>Localization</h1>" + table(["share of queries within", ""], figures)
    body += "<h2>Queries, worst first</h2>" + table(["query", "position (m)", "rotation (deg)"], rows)
    return page("localization", body + provenance(report["protocol"], report["environment"]))


LOCALIZATION = Benchmark(
    name="localization",
    load=load_localization,
    run=evaluate_localization,
    run_options=(Option("from_scratch", bool, False, "Reconstruct the reference photos too.", ("--map",)),),
    shared=("max_matches", "preset"),
    presets={"default": {"max_matches": 4096}, "paper": {"max_matches": 2000}},  # the paper: K = 2000
    text=localization_text,
    result="figures",
)

AACHEN = replace(
    LOCALIZATION,
    name="aachen",
    load=load_aachen,
    options=(
        Option("when", str, "night", "night or day."),
        Option("release", str | None, None, "1.0 (.nvm, 98 night queries: the paper's) or 1.1."),
    ),
    run_options=(),
)
