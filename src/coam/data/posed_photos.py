"""Posed pairs from photos: packed tracks or RGB-D frames, a COLMAP model, a list of pairs, MegaDepth.

Only photos, camera matrices and poses are used to train; what else a file holds (common points, depth) helps
at most to choose pairs and to cut the two windows where the photos overlap.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.data.megadepth import DEFAULT_CHOICE as MEGADEPTH_CHOICE
from coam.data.megadepth import MegaDepthChoice, MegaDepthPairs
from coam.data.packed import PackedRgbd, PackedTracks
from coam.data.posed import (
    DEFAULT_QUERIES,
    PosedBatch,
    QueryOptions,
    Views,
    concatenate_posed,
    posed_batch,
)
from coam.data.resident import ResidentPhotos, apply_affine
from coam.data.windows import CropOptions, Draw, pair_weights, place_windows
from coam.data.worlds import inverse
from coam.errors import ConfigError, DataError
from coam.geometry.coordinates import from_colmap
from coam.geometry.depth import intrinsics_matrix
from coam.geometry.epipolar import fundamental_from_pose, symmetric_epipolar_distance
from coam.geometry.pose import relative_pose_matrix, rotation_angle
from coam.tensors import constant, times

Array = npt.NDArray[Any]
DEFAULT_CROP = CropOptions(zoom=(0.6, 1.2), max_rotation=15.0)
COMMON = 64  # common points kept per pair, to place the windows
LISTING = "*pairs_with_gt.txt"


@dataclass(frozen=True)
class PosedChoice:
    """Which pairs are used and how often."""

    max_rotation: float = 80.0  # degrees between the cameras
    min_shared: float = 30.0  # common points (tracks), or share of the first frame (RGB-D): see the loaders
    max_error: float = 3.0  # pixels: nine of ten common points lie this near to their epipolar lines
    easy_weight: float = 0.35  # how often a pair at 0 degrees is drawn against one at 10 degrees or more
    scene_power: float = 0.5  # scenes weigh as (number of pairs) ** scene_power


DEFAULT_CHOICE = PosedChoice()


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


class PosedPhotos:
    """A `PosedSource` of photos that stay on `device` as uint8."""

    recordable = True

    def __init__(
        self,
        listed: PosedPairList,
        device: torch.device | str = "cpu",
        crop: CropOptions = DEFAULT_CROP,
        queries: QueryOptions = DEFAULT_QUERIES,
    ) -> None:
        self.device, self.crop, self.queries = torch.device(device), crop, queries
        used, compact = np.unique(listed.pairs, return_inverse=True)
        with ThreadPoolExecutor() as pool:  # decoding is most of the start-up time
            self.photos = ResidentPhotos(pool.map(listed.photo, used.tolist()), self.device)
        self._images = torch.from_numpy(compact.reshape(-1, 2).astype(np.int64)).to(self.device)
        cameras = np.stack([listed.cameras0, listed.cameras1], axis=1)
        self._cameras = torch.from_numpy(cameras).float().to(self.device)  # (P, 2, 3, 3)
        self._transforms = torch.from_numpy(_at_unit_distance(listed.transforms)).float().to(self.device)
        self._cumulative = torch.from_numpy(listed.weights.astype(np.float64)).cumsum(0).to(self.device)
        if listed.common is None or listed.count is None:
            self._common, self._count = self._middles(), torch.ones(len(self), device=self.device).long()
        else:
            self._common = torch.from_numpy(listed.common).float().to(self.device)
            self._count = torch.from_numpy(listed.count.astype(np.int64)).to(self.device)

    def __len__(self) -> int:
        return len(self._images)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PosedBatch:
        """See `PosedSource`."""
        draw = Draw(generator)
        pair = draw.weighted(self._cumulative, batch_size)
        images = self._images[pair]
        views = Views(self._cameras[pair, 0], self._cameras[pair, 1], self._transforms[pair])
        return cut_pair(
            self.photos, images, views, self._common[pair], self._count[pair], size, points, draw, generator,
            self.crop, self.queries,
        )  # fmt: skip

    def _middles(self) -> Tensor:
        """The middles of both photos (P, 1, 4): where windows are placed if nothing better is known."""
        return ((self.photos.sizes[self._images].float() - 1) / 2).reshape(len(self), 1, 4)


def cut_pair(
    photos: ResidentPhotos,
    images: Tensor,
    views: Views,
    common: Tensor,
    count: Tensor,
    size: int,
    points: int,
    draw: Draw,
    generator: torch.Generator,
    crop: CropOptions,
    queries: QueryOptions,
) -> PosedBatch:
    """Windows of photos (B, 2) whose cameras are `views`, around common places (B, K, 4), as one batch."""
    sizes = photos.sizes[images].float()
    maps = place_windows((sizes[:, 0], sizes[:, 1]), common, count, size, crop, draw)
    cut = Views(
        times(inverse(_square(maps[0])), views.camera0),
        times(inverse(_square(maps[1])), views.camera1),
        views.transform,
    )
    seen = photos.original_or_copy(images, draw.uniform(*images.shape))
    image0, image1 = (photos.crop(seen[:, k], maps[k], size) for k in range(2))
    batch = posed_batch(image0, image1, cut, points, generator, queries)
    inside0, inside1 = (
        _inside_photo(apply_affine(maps[k], found), sizes[:, k])
        for k, found in enumerate((batch.points0, batch.points1))
    )
    return replace(batch, valid0=batch.valid0 & inside0, valid1=batch.valid1 & inside1)


def _square(affine: Tensor) -> Tensor:
    """Affine maps (B, 2, 3) as (B, 3, 3)."""
    last = constant((0.0, 0.0, 1.0), affine.device).expand(len(affine), 1, 3)
    return torch.cat([affine, last], dim=1)


def _inside_photo(points: Tensor, sizes: Tensor) -> Tensor:
    """Which photo positions (B, L, 2) lie in photos of (B, 2) width, height."""
    inside: Tensor = ((points >= 0) & (points <= sizes.unsqueeze(1) - 1)).all(dim=-1)
    return inside


def _at_unit_distance(transforms: Array) -> Array:
    """Poses (P, 4, 4) with translations of length one: models differ in scale, epipolar geometry has none."""
    scaled: Array = transforms.astype(np.float64).copy()
    length = np.linalg.norm(scaled[:, :3, 3], axis=1, keepdims=True)
    if (length < 1e-9).any():
        raise DataError("two cameras of a pair stand at one place; leave out pairs without translation")
    scaled[:, :3, 3] /= length
    return scaled


# ---- lists of pairs


def pairs_from_tracks(
    packed: PackedTracks | str | Path,
    scenes: Sequence[str] | None = None,
    choice: PosedChoice = DEFAULT_CHOICE,
) -> PosedPairList:
    """Pairs of a packed file of COLMAP models.

    Pairs whose own common points miss the epipolar lines (lens distortion, wrong poses) are left out.
    """
    packed = packed if isinstance(packed, PackedTracks) else PackedTracks.load(packed)
    wanted = _of_scenes(packed, scenes) & (packed.pair_shared >= choice.min_shared)
    kept, common, count = [], [], []
    for pair in np.flatnonzero(wanted):
        camera0, camera1, transform = _cameras(packed, int(pair))
        points0, points1 = packed.shared_points(int(pair))
        error = symmetric_epipolar_distance(
            points0, points1, fundamental_from_pose(camera0, camera1, transform)
        )
        if np.quantile(error, 0.9) <= choice.max_error:
            chosen = np.linspace(0, len(points0) - 1, min(COMMON, len(points0))).round().astype(int)
            row = np.zeros((COMMON, 4), dtype=np.float32)
            row[: len(chosen)] = np.concatenate([points0, points1], axis=1)[chosen]
            kept.append(int(pair))
            common.append(row)
            count.append(len(chosen))
    return _from_packed(packed, kept, choice, np.array(common), np.array(count))


def pairs_from_rgbd(packed: PackedRgbd | str | Path, choice: PosedChoice | None = None) -> PosedPairList:
    """Pairs of a packed file of RGB-D frames; their depth is not used."""
    packed = packed if isinstance(packed, PackedRgbd) else PackedRgbd.load(packed)
    choice = choice or PosedChoice(min_shared=0.3)
    return _from_packed(packed, np.flatnonzero(packed.pair_shared >= choice.min_shared).tolist(), choice)


def pairs_from_colmap(
    model: str | Path, photos: str | Path, choice: PosedChoice = DEFAULT_CHOICE
) -> PosedPairList:
    """Pairs of one COLMAP model (folder with cameras, images, points3D) and the folder of its photos."""
    from coam.data.pack_tracks import TrackScene, pack_tracks

    with tempfile.TemporaryDirectory() as folder:
        scene = TrackScene("model", Path(model), Path(photos))
        packed = pack_tracks([scene], Path(folder) / "packed.safetensors")
    return pairs_from_tracks(packed, choice=choice)


def _of_scenes(packed: PackedTracks, scenes: Sequence[str] | None) -> npt.NDArray[np.bool_]:
    """Which pairs (P,) belong to the named scenes (None: all)."""
    for name in scenes or ():
        if name not in packed.scenes:
            raise ConfigError(f"no scene {name!r}; the file has: {', '.join(packed.scenes)}")
    named = np.array([scenes is None or name in scenes for name in packed.scenes])
    chosen: npt.NDArray[np.bool_] = named[packed.image_scene[packed.pairs[:, 0]]]
    return chosen


def _cameras(packed: PackedTracks | PackedRgbd, pair: int) -> tuple[Array, Array, Array]:
    """Camera matrices (3, 3), (3, 3) and relative pose (4, 4) of a pair."""
    first, second = packed.pairs[pair]
    entries = torch.from_numpy(packed.intrinsics[[first, second]].astype(np.float64))
    camera0, camera1 = intrinsics_matrix(entries).numpy()
    return camera0, camera1, relative_pose_matrix(packed.poses[first], packed.poses[second])


def _from_packed(
    packed: PackedTracks | PackedRgbd,
    kept: list[int],
    choice: PosedChoice,
    common: Array | None = None,
    count: Array | None = None,
) -> PosedPairList:
    cameras = [_cameras(packed, pair) for pair in kept]
    usable = np.array([_is_usable(transform, choice) for _, _, transform in cameras], dtype=bool)
    if not usable.any():
        raise DataError(
            f"no pair of photos has {choice.min_shared:g} in common and cameras that agree with it;"
            " add photos that overlap"
        )
    index = np.array(kept)[usable]
    return PosedPairList(
        photo=packed.photo,
        pairs=packed.pairs[index].astype(np.int64),
        cameras0=np.stack([c[0] for c in cameras])[usable],
        cameras1=np.stack([c[1] for c in cameras])[usable],
        transforms=np.stack([c[2] for c in cameras])[usable],
        weights=pair_weights(
            packed.pair_angle[index], packed.image_scene[packed.pairs[index, 0]], choice.easy_weight,
            choice.scene_power,
        ),
        common=None if common is None else common[usable],
        count=None if count is None else count[usable],
    )  # fmt: skip


def _is_usable(transform: Array, choice: PosedChoice) -> bool:
    turned = rotation_angle(transform[:3, :3]) <= choice.max_rotation
    return bool(turned and np.linalg.norm(transform[:3, 3]) > 1e-9)


def pairs_from_list(root: str | Path, choice: PosedChoice = DEFAULT_CHOICE) -> PosedPairList:
    """Pairs of ROOT/*pairs_with_gt.txt, one per line: name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16).

    Cameras belong to the photos as stored, so `rot` (how often to turn them upright) is not applied.
    """
    root = Path(root)
    listings = sorted(root.glob(LISTING))
    if len(listings) != 1:
        raise DataError(f"{root} holds {len(listings)} files {LISTING}; it must hold one")
    names: dict[str, int] = {}
    rows = []
    for number, line in enumerate(listings[0].read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            words = line.split()
            where = f"{listings[0].name} line {number}"
            values = _numbers(words, where)
            for name in words[:2]:
                if not (root / name).is_file():
                    raise DataError(f"{where}: the photo {name} is missing in {root}")
            pair = [names.setdefault(name, len(names)) for name in words[:2]]
            transform = values[18:].reshape(4, 4)
            if _is_usable(transform, choice):
                rows.append((pair, values[:9].reshape(3, 3), values[9:18].reshape(3, 3), transform))
    if not rows:
        raise DataError(f"{listings[0].name} lists no pair within {choice.max_rotation:g} degrees")
    pairs, cameras0, cameras1, transforms = (np.array(column) for column in zip(*rows, strict=True))
    paths = [root / name for name in names]
    weights = np.full(len(rows), 1 / len(rows))
    return PosedPairList(lambda i: read_rgb(paths[i]), pairs, cameras0, cameras1, transforms, weights)


def _numbers(words: list[str], where: str) -> Array:
    try:
        values = np.asarray(words[4:], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{where} holds something that is not a number: {error}") from error
    if len(values) != 34:
        raise DataError(
            f"{where} has {len(words)} entries, wanted 38: name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16)"
        )
    return values


def read_rgb(path: Path) -> npt.NDArray[np.uint8]:
    """A photo (H, W, 3) as it is stored: no EXIF turn, because cameras belong to the stored pixels."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"cannot read the photo {path}: {error}") from error


# ---- MegaDepth


class MegaDepthPoses:
    """A `PosedSource` from MegaDepth's published layout; only photos, cameras and poses are read.

    Photos are too many to stay on the device: each pair is read in a thread, with a generator of its own.
    """

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
        self.root, self.device, self.crop, self.queries = Path(root), torch.device(device), crop, queries
        self.scenes = MegaDepthPairs(root, scenes, "cpu", scene_info, choice=choice, workers=1).scenes
        counts = torch.tensor([len(scene.pairs) for scene in self.scenes], dtype=torch.float64)
        self._cumulative = (counts**choice.scene_power).cumsum(0)
        self._pool = ThreadPoolExecutor(max(1, workers))

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PosedBatch:
        """See `PosedSource`."""
        seeds = torch.randint(2**62, (batch_size,), generator=generator, device=generator.device).tolist()
        singles = list(self._pool.map(lambda seed: self._sample_one(seed, size, points), seeds))
        batch = concatenate_posed(singles)
        given = {name: value.to(self.device) for name, value in vars(batch).items() if value is not None}
        return PosedBatch(**given)

    def _sample_one(self, seed: int, size: int, points: int) -> PosedBatch:
        generator = torch.Generator().manual_seed(seed)
        draw = Draw(generator)
        scene = self.scenes[int(draw.weighted(self._cumulative, 1))]
        pair = scene.pairs[int(draw.uniform(1) * len(scene.pairs))]
        order = pair if float(draw.uniform(1)) < 0.5 else pair[::-1]
        photos = ResidentPhotos([read_rgb(self.root / str(scene.photos[k])) for k in order])
        cameras = []
        for k in order:
            matrix = np.array(scene.intrinsics[k], dtype=np.float64)
            matrix[:2, 2] = from_colmap(matrix[:2, 2])
            cameras.append(torch.from_numpy(matrix).float()[None])
        transform = relative_pose_matrix(scene.poses[order[0]], scene.poses[order[1]])[None]
        views = Views(cameras[0], cameras[1], torch.from_numpy(_at_unit_distance(transform)).float())
        middles = ((photos.sizes.float() - 1) / 2).reshape(1, 1, 4)
        one = torch.ones(1, dtype=torch.int64)
        return cut_pair(
            photos, torch.tensor([[0, 1]]), views, middles, one, size, points, draw, generator, self.crop,
            self.queries,
        )  # fmt: skip
