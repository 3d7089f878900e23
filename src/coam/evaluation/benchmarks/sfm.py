"""Structure from motion: the five figures of the paper's tables, ours beside COLMAP's SIFT, in one run.

Layouts: a folder of photos is one scene; a folder of the Local Feature Evaluation benchmark (Schoenberger et
al., CVPR 2017: Madrid_Metropolis/images, Gendarmenmarkt/images, Tower_of_London/images) is one scene per
subfolder with `images`; so is any folder whose subfolders hold photos (the paper's sculptures).

Figures, of the largest model: registered images, sparse points, mean track length, mean reprojection error in
pixels, dense points (only where COLMAP was built with CUDA; otherwise the table says so). SIFT is COLMAP's
own, with its default settings but the cameras that ours takes (which photos share one), exhaustive matching
and the same incremental mapper.

They are figures of quantity: a wrong model can have more points than a right one. So poses are compared after
the models were laid over each other. Where SCENE/sparse (beside SCENE/images) holds a COLMAP model of true
poses, photos are right within 5 % of its size and 5 degrees, and the others wrong. Elsewhere the table says
how many of the photos that both methods have registered they put in the same place: two methods that know
nothing of each other do not make the same mistake. report.json names the others: look at those.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from coam.errors import ConfigError, DataError
from coam.evaluation.matchers.by_name import MatcherSpec
from coam.evaluation.reports.html import page, provenance, table
from coam.evaluation.reports.text import format_value, markdown_table
from coam.evaluation.runner import Benchmark, Option, environment, write_json
from coam.geometry.alignment import Pose, pose_errors
from coam.images.folder import PHOTO_ENDINGS
from coam.store.atomic import write_text
from coam.store.documents import read_json

if TYPE_CHECKING:
    from coam.sfm.workspace import Tracks

FIGURE_NAMES = {
    "registered_images": "registered images",
    "sparse_points": "sparse points",
    "mean_track_length": "track length",
    "mean_reprojection_error": "reprojection error (px)",
    "dense_points": "dense points",
    "places": "right places",
}
Say = Callable[[str], None]


def find_scenes(root: Path) -> dict[str, Path]:
    """Scene name -> folder of its photos."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give a folder of photos or of scenes")
    subfolders = sorted(folder for folder in root.iterdir() if folder.is_dir())
    nested = {f.name: f / "images" for f in subfolders if _has_photos(f / "images")}
    if nested:
        return nested
    if _has_photos(root):
        return {root.resolve().name: root}
    flat = {f.name: f for f in subfolders if _has_photos(f)}
    if not flat:
        raise DataError(
            f"no photos in {root}, its subfolders or their images/; give a folder of photos or of scenes"
        )
    return flat


def _has_photos(folder: Path) -> bool:
    return folder.is_dir() and any(p.suffix.lower() in PHOTO_ENDINGS for p in folder.iterdir())


def reconstruct_with_sift(photos: Path, output: Path, seed: int = 0) -> dict[str, Any]:
    """The five figures of COLMAP's own SIFT pipeline; kept in sift.json, so that it runs once."""
    from coam.sfm.colmap_model import model_figures, read_model, require_pycolmap
    from coam.sfm.photos import read_photo_folder
    from coam.sfm.sift import SiftOptions, build_sift_models, photos_by_camera

    require_pycolmap()
    import pycolmap

    folder = read_photo_folder(photos)
    cameras = photos_by_camera(folder.photos)  # SIFT is told what ours knows
    digests = [photo.digest for photo in folder.photos]
    made_from = hashlib.sha1(
        repr((cameras, digests, seed, pycolmap.__version__)).encode(), usedforsecurity=False
    ).hexdigest()
    done = output / "sift.json"
    if done.is_file():
        finished = dict(read_json(done, dict, "remove it to compute it again"))
        if finished.pop("made_from", None) == made_from:
            return finished
    work = output / "sift"
    shutil.rmtree(work, ignore_errors=True)
    models = build_sift_models(folder, work, cameras, SiftOptions(seed=seed))
    result = model_figures(*(read_model(place) for place in models[:1]))
    write_json(done, result | {"made_from": made_from})
    return result


def poses_of_largest(folder: Path) -> dict[str, Pose]:
    """Poses of the photos of the largest COLMAP model below `folder` (0/, 1/, ... or itself); none: empty."""
    from coam.sfm.colmap_model import model_poses, read_model

    places = [path.parent for path in sorted(folder.rglob("images.*")) if path.suffix in (".bin", ".txt")]
    models = [model_poses(read_model(place)) for place in dict.fromkeys(places)]
    return max(models, key=len, default={})


def compare_places(poses: dict[str, Pose], reference: dict[str, Pose]) -> dict[str, Any]:
    """How many common photos are in the same place in both models, and the names of those that are not."""
    errors = pose_errors(poses, reference)
    same = errors.correct()
    other = sorted(set(errors.names) - set(same))
    return {"common": len(errors.names), "same": len(same), "elsewhere": other}


def add_places(result: dict[str, Any], ours: str, folder: Path, truth: Path) -> None:
    """Compare the places of photos with the truth, or else of our model with SIFT's."""
    poses = {ours: poses_of_largest(folder / "ours" / "sparse"), "SIFT": poses_of_largest(folder / "sift")}
    true_poses = poses_of_largest(truth) if truth.is_dir() else {}
    for method, other in ((ours, "SIFT"), ("SIFT", ours)):
        if method in result and (true_poses or other in result):
            places = compare_places(poses[method], true_poses or poses[other])
            against = "the truth" if true_poses else "the other"
            result[method]["elsewhere"] = places["elsewhere"]
            result[method]["places"] = f"{places['same']} of {places['common']} as in {against}"


def evaluate_sfm(
    scenes: dict[str, Path],
    spec: MatcherSpec,
    output: Path,
    *,
    with_sift: bool = True,
    tracks: Tracks = "refined",
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Reconstruct every scene with our matcher, and with SIFT beside it; write the report and return it."""
    from coam.sfm.matching.match_pairs import without_rematching
    from coam.sfm.photos import read_photo_folder
    from coam.sfm.pipeline import run_sfm
    from coam.sfm.settings import describe_matcher
    from coam.sfm.workspace import SfmOptions, Tracks

    if tracks not in get_args(Tracks):
        raise ConfigError(f"--tracks {tracks}: choose {', '.join(get_args(Tracks))}")
    matcher, options = without_rematching(spec.create()), SfmOptions(tracks=tracks)
    results: dict[str, dict[str, Any]] = {}
    for name, photos in scenes.items():
        say(f"{name}: {spec.name}")
        try:
            ours: dict[str, Any] = run_sfm(photos, output / name / "ours", matcher, options, say=say)
        except DataError as error:  # a scene that cannot be reconstructed is a result, not the end of the run
            say(f"{name}: {error}")
            ours = {"failure": str(error).split(": ", 1)[-1]}
        results[name] = {
            "photos": len(read_photo_folder(photos).photos),
            spec.name: {key: ours.get(key) for key in (*FIGURE_NAMES, "failure", "warnings") if key in ours},
        }
        if with_sift:
            say(f"{name}: SIFT")
            results[name]["SIFT"] = reconstruct_with_sift(photos, output / name)
        add_places(results[name], spec.name, output / name, photos.parent / "sparse")
    report = {
        "benchmark": "sfm",
        "protocol": __doc__,
        "tracks": tracks,
        "matcher": spec.identity | describe_matcher(matcher) | {"licence": spec.licence},
        "scenes": results,
        "environment": environment(),
    }
    write_json(output / "report.json", report)
    write_text(output / "report.html", sfm_page(report))
    write_text(output / "report.md", sfm_text(report))
    return report


def _rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for scene, content in report["scenes"].items():
        for method, figures in content.items():
            if method != "photos":
                values = [_figure(figures.get(key), key) for key in FIGURE_NAMES]
                rows.append([f"{scene} ({content['photos']} photos)", method, *values])
    return rows


def _figure(value: Any, key: str) -> str:
    if value is None or isinstance(value, str):
        return value or "X"
    return format_value(float(value), "share" if key.startswith("mean") else "count")


def sfm_text(report: dict[str, Any]) -> str:
    """The table as Markdown, which a terminal shows as well."""
    return "\n".join(markdown_table(["scene", "method", *FIGURE_NAMES.values()], _rows(report))) + "\n"


def sfm_page(report: dict[str, Any]) -> str:
    """The table as a page."""
    rows: Sequence[Sequence[str]] = [[escape(cell) for cell in row] for row in _rows(report)]
    body = "<h1>Structure from motion</h1>" + table(["scene", "method", *FIGURE_NAMES.values()], rows)
    return page("sfm", body + provenance(report["protocol"], report["environment"]))


SFM = Benchmark(
    name="sfm",
    load=find_scenes,
    run=evaluate_sfm,
    run_options=(
        Option("with_sift", bool, True, "COLMAP's SIFT beside ours.", ("--sift/--no-sift",)),
        Option(
            "tracks",
            str | None,
            None,
            "Our sub-pixel tracks: quantised (with --preset paper), merged, or refined in the photos (else).",
        ),
    ),
    shared=("max_matches", "preset"),
    # The paper: K = 8192, positions on the grid as they are.
    presets={
        "default": {"max_matches": 4096, "tracks": "refined"},
        "paper": {"max_matches": 8192, "tracks": "quantised"},
    },
    text=sfm_text,
    result="scenes",
)
