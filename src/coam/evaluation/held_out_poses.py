"""Posed pairs from COLMAP models of photo sets that no training has seen, in CAPSNet's three grades.

Writes undistorted photos and one pairs_with_gt.txt (see `coam.evaluation.posed_pairs`): of each scene and
each grade of rotation, easy [0, 15], medium (15, 30], hard (30, 60] degrees, the same number of pairs as far
as there are so many, drawn among those whose photos share 3D points. Poses come from structure from motion:
they are about as good as its reprojection error, and pairs that no SIFT feature joins are not in the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import DataError, MissingExtraError
from coam.evaluation.pairs import Array
from coam.evaluation.posed_pairs import angle_subset
from coam.geometry.coordinates import from_colmap
from coam.geometry.pose import relative_pose_matrix, rotation_angle

GRADES = ("easy", "medium", "hard")
LISTING = "pairs_with_gt.txt"


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
    (folder / LISTING).write_text("\n".join(lines) + "\n")
    return counts


def _read_model(folder: Path) -> list[dict[str, Any]]:
    """Name, camera, pose and seen points of every registered photo, by name."""
    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtraError("pycolmap", "sfm") from error
    try:
        model = pycolmap.Reconstruction(folder)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{folder} holds no COLMAP model (cameras, images, points3D)") from error
    return [
        {
            "name": image.name,
            "camera": model.cameras[image.camera_id],
            "pose": np.asarray(image.cam_from_world().matrix()),
            "points": {p.point3D_id for p in image.points2D if p.has_point3D()},
        }
        for image in sorted(model.images.values(), key=lambda i: i.name)
        if image.has_pose
    ]


def _choose(
    views: list[dict[str, Any]], per_grade: int, min_shared: int, random: np.random.Generator
) -> dict[str, list[tuple[int, int]]]:
    grades: dict[str, list[tuple[int, int]]] = {grade: [] for grade in GRADES}
    for first, second in combinations(range(len(views)), 2):
        if len(views[first]["points"] & views[second]["points"]) >= min_shared:
            turn = relative_pose_matrix(views[first]["pose"], views[second]["pose"])[:3, :3]
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


def _write_undistorted(view: dict[str, Any], photos: Path, folder: Path) -> None:
    import cv2

    photo = cv2.imread(str(photos / view["name"]), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if photo is None:
        raise DataError(f"cannot read the photo {photos / view['name']}")
    camera = view["camera"]
    if photo.shape[:2] != (camera.height, camera.width):
        raise DataError(f"{photos / view['name']} does not have the size of its camera")
    target = folder / _file_name(view["name"])
    target.parent.mkdir(parents=True, exist_ok=True)
    straight = cv2.undistort(photo, _matrix(camera), _radial(camera))
    cv2.imwrite(str(target), straight, [cv2.IMWRITE_JPEG_QUALITY, 95])


def _file_name(name: str) -> str:
    """The list is split at spaces, so a name must not have any."""
    return str(Path(name).with_suffix(".jpg")).replace(" ", "_")


def _line(scene: str, first: dict[str, Any], second: dict[str, Any]) -> str:
    pose = relative_pose_matrix(first["pose"], second["pose"])
    numbers = [*_matrix(first["camera"]).ravel(), *_matrix(second["camera"]).ravel(), *pose.ravel()]
    names = [f"{scene}/{_file_name(view['name'])}" for view in (first, second)]
    return " ".join([*names, "0", "0", *(repr(float(n)) for n in numbers)])
