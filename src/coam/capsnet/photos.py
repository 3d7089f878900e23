"""Sources of posed pairs from photos: lists of pairs in device memory, or MegaDepth read from disk.

Lists come from packed tracks or RGB-D frames, a COLMAP model, or a file of pairs. Only photos, camera
matrices and poses are used to train; what else a file holds (common points) helps at most to choose pairs and
to cut the two windows where the photos overlap.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.capsnet.pairs import DEFAULT_QUERIES, PosedBatch, QueryOptions, Views, posed_batch
from coam.data.device_photos import DevicePhotos
from coam.data.host_photos import HostPhotos
from coam.data.megadepth import DEFAULT_CHOICE as MEGADEPTH_CHOICE
from coam.data.megadepth import MegaDepthChoice, MegaDepthSource
from coam.data.packed import PackedPairs, PackedRgbd, PackedTracks, PairWeights, read_stored_rgb
from coam.data.photo_pairs import PairTable, load_used_photos
from coam.data.sample import Draw
from coam.data.windows import CropOptions, apply_affine
from coam.data.worlds import inverse
from coam.errors import DataError
from coam.evaluation.benchmarks.posed_pairs import load_posed_pairs
from coam.geometry.depth import intrinsics_matrix
from coam.geometry.epipolar import fundamental_from_pose, symmetric_epipolar_distance
from coam.geometry.pose import relative_pose_matrix, rotation_angle
from coam.tensors import constant, times

Array = npt.NDArray[Any]
COMMON = 64  # common points listed per pair, to place the windows
DEFAULT_CROP = CropOptions(zoom=(0.6, 1.2), max_rotation=15.0)


@dataclass(frozen=True)
class PosedChoice(PairWeights):
    """Which pairs are used and how often."""

    max_rotation: float = 80.0  # degrees between the cameras
    min_shared: float = 30.0  # common points (tracks), or share of the first frame (RGB-D): see the loaders
    max_error: float = 3.0  # pixels: nine of ten common points lie this near to their epipolar lines

    def takes(self, transform: Array) -> bool:
        """Whether two cameras with this relative pose (4, 4) are used."""
        turned = rotation_angle(transform[:3, :3]) <= self.max_rotation
        return bool(turned and np.linalg.norm(transform[:3, 3]) > 1e-9)


DEFAULT_CHOICE = PosedChoice()
RGBD_CHOICE = PosedChoice(min_shared=0.3)


@dataclass(frozen=True)
class PosedPairList:
    """P pairs of N photos with their cameras; on the host."""

    photo: Callable[[int], Array]  # index of a photo -> (H, W, 3) uint8
    pairs: Array  # (P, 2) int64
    cameras0: Array  # (P, 3, 3) of the first photo, our pixels
    cameras1: Array  # (P, 3, 3)
    transforms: Array  # (P, 4, 4) camera 0 -> camera 1
    weights: Array  # (P,) how often each is drawn
    common: Array | None = None  # (P, K, 4) x0, y0, x1, y1 of places that both show, filled from the front
    count: Array | None = None  # (P,) how many there are


def pairs_from_tracks(
    packed: PackedTracks | str | Path,
    choice: PosedChoice = DEFAULT_CHOICE,
    scenes: Sequence[str] | None = None,
) -> PosedPairList:
    """Pairs of a packed file of COLMAP models.

    Pairs whose own common points miss the epipolar lines (lens distortion, wrong poses) are left out.
    """
    packed = PackedTracks.load(packed)
    kept, common, count = [], [], []
    wanted = packed.in_scenes(scenes) & (packed.pair_shared >= choice.min_shared)
    for pair in np.flatnonzero(wanted).tolist():
        points0, points1 = packed.shared_points(pair)
        fundamental = fundamental_from_pose(*_cameras(packed, pair))
        error = symmetric_epipolar_distance(points0, points1, fundamental)
        if np.quantile(error, 0.9) <= choice.max_error:
            chosen = np.linspace(0, len(points0) - 1, min(COMMON, len(points0))).round().astype(int)
            row = np.zeros((COMMON, 4), dtype=np.float32)
            row[: len(chosen)] = np.concatenate([points0, points1], axis=1)[chosen]
            kept.append(pair)
            common.append(row)
            count.append(len(chosen))
    return _from_packed(packed, np.array(kept, dtype=np.int64), choice, np.array(common), np.array(count))


def pairs_from_rgbd(packed: PackedRgbd | str | Path, choice: PosedChoice = RGBD_CHOICE) -> PosedPairList:
    """Pairs of a packed file of RGB-D frames; their depth is not used."""
    packed = PackedRgbd.load(packed)
    return _from_packed(packed, np.flatnonzero(packed.pair_shared >= choice.min_shared), choice)


def pairs_from_colmap(
    model: str | Path, photos: str | Path, choice: PosedChoice = DEFAULT_CHOICE
) -> PosedPairList:
    """Pairs of one COLMAP model (folder with cameras, images, points3D) and the folder of its photos."""
    from coam.data.pack_tracks import TrackScene, pack_tracks

    with tempfile.TemporaryDirectory() as folder:
        scene = TrackScene("model", Path(model), Path(photos))
        packed = pack_tracks([scene], Path(folder) / "packed.safetensors")
    return pairs_from_tracks(packed, choice)


def _cameras(packed: PackedPairs, pair: int) -> tuple[Array, Array, Array]:
    """Camera matrices (3, 3), (3, 3) and relative pose (4, 4) of a pair."""
    first, second = packed.pairs[pair]
    entries = torch.from_numpy(packed.intrinsics[[first, second]].astype(np.float64))
    camera0, camera1 = intrinsics_matrix(entries).numpy()
    return camera0, camera1, relative_pose_matrix(packed.poses[first], packed.poses[second])


def _from_packed(
    packed: PackedPairs,
    kept: npt.NDArray[np.int64],
    choice: PosedChoice,
    common: Array | None = None,
    count: Array | None = None,
) -> PosedPairList:
    cameras = [_cameras(packed, pair) for pair in kept]
    usable = np.array([choice.takes(transform) for _, _, transform in cameras], dtype=bool)
    if not usable.any():
        raise DataError(
            f"no pair of photos has {choice.min_shared:g} in common and cameras that agree with it;"
            " add photos that overlap"
        )
    index = kept[usable]
    cameras0, cameras1, transforms = (np.stack(column)[usable] for column in zip(*cameras, strict=True))
    return PosedPairList(
        packed.photo,
        packed.pairs[index].astype(np.int64),
        cameras0,
        cameras1,
        transforms,
        packed.weights_of(index, choice),
        None if common is None else common[usable],
        None if count is None else count[usable],
    )


def pairs_from_list(root: str | Path, choice: PosedChoice = DEFAULT_CHOICE) -> PosedPairList:
    """Pairs of ROOT/*pairs_with_gt.txt, one per line: name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16).

    Cameras belong to the photos as stored, so `rot` (how often to turn them upright) is not applied.
    """
    found = [p for p in load_posed_pairs(Path(root)) if p.pose is not None and choice.takes(p.pose)]
    if not found:
        raise DataError(f"{root} lists no pair within {choice.max_rotation:g} degrees")
    names: dict[Path, int] = {}
    pairs = [[names.setdefault(path, len(names)) for path in (p.image0, p.image1)] for p in found]
    paths = list(names)
    return PosedPairList(
        lambda index: read_stored_rgb(paths[index]),
        np.array(pairs),
        np.array([pair.intrinsics0 for pair in found]),
        np.array([pair.intrinsics1 for pair in found]),
        np.array([pair.pose for pair in found]),
        np.full(len(found), 1 / len(found)),
    )


class PosedPhotos:
    """A `PosedSource` of photos that stay in the memory of `device` as bytes."""

    recordable = True

    def __init__(
        self, listed: PosedPairList, device: torch.device | str = "cpu", crop: CropOptions = DEFAULT_CROP
    ) -> None:
        self.device, self.crop = torch.device(device), crop
        self.photos, images = load_used_photos(listed.photo, listed.pairs, self.device)
        matrices = (listed.cameras0, listed.cameras1, _at_unit_distance(listed.transforms))
        self._views = Views(*(torch.from_numpy(m).float().to(self.device) for m in matrices))
        self._cumulative = torch.from_numpy(listed.weights.astype(np.float64)).cumsum(0).to(self.device)
        if listed.common is None or listed.count is None:
            self._pairs = _with_middles(self.photos, images)
        else:
            common = torch.from_numpy(listed.common).float().to(self.device)
            count = torch.from_numpy(listed.count.astype(np.int64)).to(self.device)
            self._pairs = PairTable(images, common, count)

    def __len__(self) -> int:
        return len(self._pairs.images)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PosedBatch:
        """See `BatchSource`."""
        draw = Draw(generator, batch_size)
        index = draw.weighted(self._cumulative)
        views = Views(*(part[index] for part in vars(self._views).values()))
        return cut_posed(self.photos, self._pairs.rows(index), views, size, points, draw, self.crop)


def cut_posed(
    photos: DevicePhotos | HostPhotos,
    pairs: PairTable,
    views: Views,
    size: int,
    points: int,
    draw: Draw,
    crop: CropOptions,
    queries: QueryOptions = DEFAULT_QUERIES,
) -> PosedBatch:
    """Windows of the photos of B pairs, whose cameras are `views`, as one batch."""
    maps = pairs.place_windows(photos, size, crop, draw)
    camera0, camera1 = (
        times(inverse(_square(to_photo)), camera)
        for to_photo, camera in zip(maps, (views.camera0, views.camera1), strict=True)
    )
    cut = Views(camera0, camera1, views.transform)
    image0, image1 = pairs.cut(photos, maps, size, draw)
    batch = posed_batch(image0, image1, cut, points, draw.generator, queries)
    sizes = photos.sizes[pairs.images].float().unsqueeze(2)  # (B, 2, 1, 2) width, height
    inside = []  # the photo: a crop may be larger
    for k, found in enumerate((batch.points0, batch.points1)):
        places = apply_affine(maps[k], found)
        inside.append(((places >= 0) & (places <= sizes[:, k] - 1)).all(dim=-1))
    return replace(batch, valid0=batch.valid0 & inside[0], valid1=batch.valid1 & inside[1])


def _with_middles(photos: DevicePhotos | HostPhotos, images: Tensor) -> PairTable:
    """Pairs (P, 2) whose windows are placed around the middles of both photos: nothing better is known."""
    middles = ((photos.sizes[images].float() - 1) / 2).reshape(len(images), 1, 4)
    return PairTable(images, middles, torch.ones(len(images), dtype=torch.int64, device=images.device))


def _square(affine: Tensor) -> Tensor:
    """Affine maps (B, 2, 3) as (B, 3, 3)."""
    last = constant((0.0, 0.0, 1.0), affine.device).expand(len(affine), 1, 3)
    return torch.cat([affine, last], dim=1)


def _at_unit_distance(transforms: Array) -> Array:
    """Poses (P, 4, 4) with translations of length one: models differ in scale, epipolar geometry has none."""
    scaled: Array = transforms.astype(np.float64).copy()
    length = np.linalg.norm(scaled[:, :3, 3], axis=1, keepdims=True)
    if (length < 1e-9).any():
        raise DataError("two cameras of a pair stand at one place; leave out pairs without translation")
    scaled[:, :3, 3] /= length
    return scaled


# ---- the kinds of sources in a recipe: a path and options -> a source


def posed_tracks(
    path: Path,
    device: torch.device,
    choice: PosedChoice = DEFAULT_CHOICE,
    crop: CropOptions = DEFAULT_CROP,
    scenes: Sequence[str] | None = None,
) -> PosedPhotos:
    """Pairs of packed tracks."""
    return PosedPhotos(pairs_from_tracks(path, choice, scenes), device, crop)


def _posed(
    list_pairs: Callable[[Path, PosedChoice], PosedPairList],
    path: Path,
    device: torch.device,
    choice: PosedChoice = DEFAULT_CHOICE,
    crop: CropOptions = DEFAULT_CROP,
) -> PosedPhotos:
    return PosedPhotos(list_pairs(path, choice), device, crop)


def _pairs_of_folder(path: Path, choice: PosedChoice) -> PosedPairList:
    """Pairs of a folder with images/ and a COLMAP model in sparse/0/, sparse/ or itself."""
    model = next(folder for folder in (path / "sparse" / "0", path / "sparse", path) if folder.is_dir())
    return pairs_from_colmap(model, path / "images", choice)


posed_rgbd = partial(_posed, pairs_from_rgbd, choice=RGBD_CHOICE)
posed_colmap = partial(_posed, _pairs_of_folder)
posed_list = partial(_posed, pairs_from_list)


class MegaDepthPoses(MegaDepthSource[PosedBatch]):
    """A `PosedSource` from MegaDepth's published layout; only photos, cameras and poses are read."""

    def __init__(
        self,
        root: str | Path,
        device: torch.device | str = "cpu",
        scenes: str | Sequence[str] = "train",
        scene_info: str | Path = "scene_info",
        choice: MegaDepthChoice = MEGADEPTH_CHOICE,
        crop: CropOptions = DEFAULT_CROP,
        queries: QueryOptions = DEFAULT_QUERIES,
        workers: int = 4,
    ) -> None:
        super().__init__(root, device, scenes, scene_info, choice, workers)
        self.crop, self.queries = crop, queries

    def sample_one(self, draw: Draw, size: int, points: int) -> PosedBatch:
        """A batch of one pair, on the host."""
        scene, (first, second) = self.draw_pair(draw)
        photos = HostPhotos([read_stored_rgb(self.root / str(scene.photos[k])) for k in (first, second)])
        transform = relative_pose_matrix(scene.poses[first], scene.poses[second])[None]
        motion = torch.from_numpy(_at_unit_distance(transform)).float()
        views = Views(scene.camera(first), scene.camera(second), motion)
        pairs = _with_middles(photos, torch.tensor([[0, 1]]))
        return cut_posed(photos, pairs, views, size, points, draw, self.crop, self.queries)
