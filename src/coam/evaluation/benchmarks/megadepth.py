"""MegaDepth relative pose in its two published protocols; scored as in `posed_pairs`.

MegaDepth-1500 (LoFTR, Sun et al., CVPR 2021): ROOT holds Undistorted_SfM/0015/images and .../0022/images; the
index is the folder assets/megadepth_test_1500_scene_info of the LoFTR repository: five .npz files
(0015_0.1_0.3.npz ...) with image_paths, intrinsics, poses (camera-from-world) and pair_infos ((i, j),
overlap, ...), 300 pairs each. They hold pickled object arrays; ours are read by an unpickler that refuses
code (`coam.store.archives`).

CAPS (Wang et al., ECCV 2020; file layout of its test/eval_pose_megadepth.py): the index is a folder with the
subfolders easy, hard, tough (rotations [0, 15], [15, 30], [30, 60] degrees: the tables call them easy,
medium, hard), each with pairs.txt (scene name0 name1) and img_cam.txt (scene name width height fx fy cx cy
R(9) t(3), camera-from-world, for the given image size). Photos: ROOT/SCENE/dense/aligned/images/NAME, or
MegaDepth's own ROOT/SCENE/dense0/imgs/NAME. CAPS takes the better of the two rotations of the essential
matrix; we take the one that puts points in front of both cameras, which can only be stricter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.benchmarks.posed_pairs import POSED_PAIRS, posed_pair
from coam.evaluation.pairs import Array, EvaluationPair, listed_lines
from coam.evaluation.runner import Option
from coam.geometry.pose import relative_pose_matrix
from coam.images.limits import opened_picture
from coam.store.archives import read_npz

WHERE_1500 = (
    "MegaDepth-1500: --root holds Undistorted_SfM/0015 and 0022 (MegaDepth v1, undistorted), "
    "--index is the folder megadepth_test_1500_scene_info of the LoFTR repository"
)
WHERE_CAPS = (
    "MegaDepth, CAPS protocol: --index is the folder with easy/, hard/, tough/ (pairs.txt, img_cam.txt)"
)
CAPS_SUBSETS = ("easy", "medium", "hard")
CAPS_PHOTOS = (
    "{scene}/dense/aligned/images/{name}",
    "{scene}/dense0/imgs/{name}",
    "{scene}/dense1/imgs/{name}",
)


def load_megadepth(root: Path, index: Path) -> list[EvaluationPair]:
    """Pairs of either protocol: .npz files in `index` are the 1500 pairs, subfolders with pairs.txt CAPS."""
    if not root.is_dir() or not index.is_dir():
        raise DataError(f"{root if not root.is_dir() else index} is not a folder. {WHERE_1500}. {WHERE_CAPS}")
    archives = sorted(index.glob("*.npz"))
    if archives:
        return [pair for archive in archives for pair in _load_archive(root, archive)]
    if any(index.glob("*/pairs.txt")):
        return _load_caps(root, index)
    raise DataError(f"no .npz and no */pairs.txt in {index}. {WHERE_1500}. {WHERE_CAPS}")


def _load_archive(root: Path, archive: Path) -> Iterator[EvaluationPair]:
    content = read_npz(archive)
    missing = {"image_paths", "intrinsics", "poses", "pair_infos"} - set(content)
    if missing:
        raise DataError(f"{archive.name} lacks {', '.join(sorted(missing))}; {WHERE_1500}")
    for number, info in enumerate(content["pair_infos"]):
        where = f"{archive.name} pair {number}"
        try:
            both = [int(i) for i in info[0]]
            names = [str(content["image_paths"][i]) for i in both]
            cameras = [np.asarray(content["intrinsics"][i], dtype=np.float64).reshape(3, 3) for i in both]
            pose0, pose1 = (np.asarray(content["poses"][i], dtype=np.float64).reshape(-1, 4) for i in both)
        except (TypeError, ValueError, IndexError) as error:
            raise DataError(f"{where} is damaged ({error}); {WHERE_1500}") from error
        pair = posed_pair(root, names, cameras, relative_pose_matrix(pose0, pose1), where)
        yield replace(pair, name=f"{archive.stem}/{number:04d}", sequence=archive.stem.split("_")[0])


@dataclass(frozen=True)
class _Camera:
    size: tuple[int, int]
    intrinsics: Array
    pose: Array  # (3, 4) camera from world


def _load_caps(root: Path, index: Path) -> list[EvaluationPair]:
    # With CAPS's own names (easy, hard, tough) "hard" is the middle one; with the tables' names the last.
    folders = ("easy", "hard", "tough") if (index / "tough").is_dir() else CAPS_SUBSETS
    pairs: list[EvaluationPair] = []
    for subset, folder in zip(CAPS_SUBSETS, folders, strict=True):
        if (index / folder / "pairs.txt").is_file():
            pairs += _load_caps_subset(root, index / folder, subset)
    return pairs


def _load_caps_subset(root: Path, folder: Path, subset: str) -> Iterator[EvaluationPair]:
    cameras = _read_cameras(folder / "img_cam.txt")
    for line, words in listed_lines(folder / "pairs.txt"):
        where = f"{folder.name}/{line}"
        if len(words) != 3:
            raise DataError(f"{where} has {len(words)} entries, wanted 3: scene name0 name1")
        scene, names = words[0], words[1:]
        for name in names:
            if (scene, name) not in cameras:
                raise DataError(f"{where}: {scene} {name} is not in img_cam.txt; get the index again")
        paths = [_caps_photo(root, scene, name, where) for name in names]
        first, second = (cameras[scene, name] for name in names)
        matrices = [_for_file(first, root / paths[0]), _for_file(second, root / paths[1])]
        pair = posed_pair(root, paths, matrices, relative_pose_matrix(first.pose, second.pose), where)
        name = f"{subset}/{scene}/{names[0]} {names[1]}"
        yield replace(pair, name=name, sequence=scene, subsets=(subset,))


def _caps_photo(root: Path, scene: str, name: str, where: str) -> str:
    for pattern in CAPS_PHOTOS:
        candidate = pattern.format(scene=scene, name=name)
        if (root / candidate).is_file():
            return candidate
    raise DataError(
        f"{where}: no photo {name} of scene {scene} below --root ({CAPS_PHOTOS[0]}); {WHERE_CAPS}"
    )


def _read_cameras(path: Path) -> dict[tuple[str, str], _Camera]:
    cameras = {}
    for where, words in listed_lines(path, WHERE_CAPS):
        try:
            values = np.asarray(words[2:], dtype=np.float64)
            width, height, fx, fy, cx, cy = values[:6]
            pose = np.column_stack([values[6:15].reshape(3, 3), values[15:18].reshape(3)])
        except ValueError as error:
            raise DataError(f"{path.parent.name}/{where} is damaged; get the index again") from error
        matrix = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
        cameras[words[0], words[1]] = _Camera((int(width), int(height)), matrix, pose)
    return cameras


def _for_file(camera: _Camera, path: Path) -> Array:
    """The camera matrix for the photo as it lies on disk, should it have another size than the index says."""
    with opened_picture(path) as image:
        size = image.size
    if size == camera.size or 0 in camera.size:
        return camera.intrinsics
    scale = np.array([size[0] / camera.size[0], size[1] / camera.size[1], 1.0])
    return np.asarray(np.diag(scale) @ camera.intrinsics)


MEGADEPTH = replace(
    POSED_PAIRS,
    name="megadepth",
    load=load_megadepth,
    options=(
        Option("index", Path, ..., "Folder of the published index: LoFTR's .npz files, or CAPS's easy/ .."),
    ),
    labelled_by="index",
)
