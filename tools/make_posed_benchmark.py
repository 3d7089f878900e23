"""Held-out relative-pose pairs from COLMAP models of photo sets that no training has seen.

    python tools/make_posed_benchmark.py OUT fox=MODEL=PHOTOS lund=MODEL=PHOTOS ... [--per-grade 40]
    coam eval posed-pairs --root OUT

Writes undistorted photos and one pairs_with_gt.txt (see `coam.evaluation.benchmarks.posed_pairs`). Of each
scene and each of CAPSNet's three grades of rotation, easy [0, 15], medium (15, 30], hard (30, 60] degrees, it
takes the same number of pairs as far as there are so many, drawn among covisible photos (those that share 3D
points). Poses come from structure from motion: they are about as good as its reprojection error, and pairs
that no SIFT feature joins are not in the list.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import ConfigError, DataError, MissingExtraError
from coam.evaluation.benchmarks.posed_pairs import angle_subset
from coam.evaluation.pairs import Array
from coam.geometry.coordinates import from_colmap
from coam.geometry.pose import relative_pose_matrix, rotation_angle
from coam.store.atomic import write_text

GRADES = ("easy", "medium", "hard")
LISTING = "pairs_with_gt.txt"


@dataclass(frozen=True)
class _View:
    """A registered photo of a COLMAP model."""

    name: str
    camera: Any  # a pycolmap.Camera
    pose: Array  # (3, 4) camera from world
    points: frozenset[int]  # ids of the 3D points that it sees


def write_held_out(
    scenes: Mapping[str, tuple[Path, Path]],
    folder: Path,
    per_grade: int = 40,
    min_shared: int = 10,
    seed: int = 0,
) -> dict[str, dict[str, int]]:
    """Write FOLDER/SCENE/*.jpg and the pair list; `scenes`: name -> (COLMAP model, its photos).

    Returns how many pairs each scene has in each grade.
    """
    lines, counts = [], {}
    for name, (model, photos) in scenes.items():
        views = _read_model(model)
        chosen = _choose(views, per_grade, min_shared, np.random.default_rng(seed))
        used = sorted({index for pairs in chosen.values() for pair in pairs for index in pair})
        for index in used:
            _write_undistorted(views[index], photos, folder / name)
        for first, second in (pair for pairs in chosen.values() for pair in pairs):
            lines.append(_line(name, views[first], views[second]))
        counts[name] = {grade: len(pairs) for grade, pairs in chosen.items()}
    if not lines:
        raise DataError("no two photos of these models share enough points; give models with more photos")
    write_text(folder / LISTING, "\n".join(lines) + "\n")
    return counts


def _read_model(folder: Path) -> list[_View]:
    """The registered photos of a model, sorted by name."""
    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtraError("pycolmap", "sfm") from error
    try:
        model = pycolmap.Reconstruction(folder)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{folder} holds no COLMAP model (cameras, images, points3D)") from error
    return [
        _View(
            image.name,
            model.cameras[image.camera_id],
            np.asarray(image.cam_from_world().matrix()),
            frozenset(p.point3D_id for p in image.points2D if p.has_point3D()),
        )
        for image in sorted(model.images.values(), key=lambda i: i.name)
        if image.has_pose
    ]


def _choose(
    views: list[_View], per_grade: int, min_shared: int, random: np.random.Generator
) -> dict[str, list[tuple[int, int]]]:
    grades: dict[str, list[tuple[int, int]]] = {grade: [] for grade in GRADES}
    for first, second in combinations(range(len(views)), 2):
        if len(views[first].points & views[second].points) >= min_shared:
            turn = relative_pose_matrix(views[first].pose, views[second].pose)[:3, :3]
            grade = angle_subset(rotation_angle(turn))
            if grade in grades:
                grades[grade].append((first, second))
    return {
        grade: [pairs[i] for i in sorted(random.permutation(len(pairs))[:per_grade])]
        for grade, pairs in grades.items()
    }


def _radial(camera: Any) -> Array:
    """OpenCV's k1, k2 of a COLMAP camera."""
    name, params = camera.model.name, np.asarray(camera.params, dtype=np.float64)
    count = {"SIMPLE_PINHOLE": 0, "PINHOLE": 0, "SIMPLE_RADIAL": 1, "RADIAL": 2}
    if name not in count:
        raise DataError(
            f"the lens model {name} is not supported here; undistort the photos with COLMAP first"
        )
    radial = np.zeros(4)
    radial[: count[name]] = params[3 : 3 + count[name]]
    return radial


def _matrix(camera: Any) -> Array:
    """Camera matrix (3, 3) in our pixels."""
    matrix = np.array(camera.calibration_matrix(), dtype=np.float64)
    matrix[:2, 2] = from_colmap(matrix[:2, 2])
    return matrix


def _write_undistorted(view: _View, photos: Path, folder: Path) -> None:
    import cv2

    photo = cv2.imread(str(photos / view.name), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if photo is None:
        raise DataError(f"cannot read the photo {photos / view.name}")
    camera = view.camera
    if photo.shape[:2] != (camera.height, camera.width):
        raise DataError(f"{photos / view.name} does not have the size of its camera")
    target = folder / _file_name(view.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    straight = cv2.undistort(photo, _matrix(camera), _radial(camera))
    cv2.imwrite(str(target), straight, [cv2.IMWRITE_JPEG_QUALITY, 95])


def _file_name(name: str) -> str:
    """The list is split at spaces, so a name must not have any."""
    return str(Path(name).with_suffix(".jpg")).replace(" ", "_")


def _line(scene: str, first: _View, second: _View) -> str:
    pose = relative_pose_matrix(first.pose, second.pose)
    numbers = [*_matrix(first.camera).ravel(), *_matrix(second.camera).ravel(), *pose.ravel()]
    names = [f"{scene}/{_file_name(view.name)}" for view in (first, second)]
    return " ".join([*names, "0", "0", *(repr(float(n)) for n in numbers)])


def parse_scene(text: str) -> tuple[str, tuple[Path, Path]]:
    """Name, model and photos of a scene given as NAME=MODEL=PHOTOS."""
    parts = text.split("=")
    if len(parts) != 3:
        raise ConfigError(f"--scenes wants NAME=MODEL=PHOTOS, not {text!r}")
    return parts[0], (Path(parts[1]), Path(parts[2]))


def main() -> None:
    """Write the benchmark, print how many pairs each scene has in each grade."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("scenes", nargs="+", help="NAME=MODEL=PHOTOS of held-out photo sets")
    parser.add_argument("--per-grade", type=int, default=40, help="pairs of each scene and grade")
    options = parser.parse_args()
    print(write_held_out(dict(map(parse_scene, options.scenes)), options.output, options.per_grade))


if __name__ == "__main__":
    main()
