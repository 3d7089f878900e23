"""The workspace of a reconstruction: what every stage needs, in one object."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.sfm.cameras import CameraChoice, PhotoCameras, camera_for_photo, make_cameras
from coam.sfm.colmap_model import read_model, registered_images
from coam.sfm.mapping.options import MapperOptions
from coam.sfm.mapping.world_scale import read_distances
from coam.sfm.matching.match_pairs import LoadMatcher, without_rematching
from coam.sfm.matching.orientation import upright_folder
from coam.sfm.model_folder import ModelFolder
from coam.sfm.pairs import Pairing, read_pairs
from coam.sfm.photos import (
    Photo,
    PhotoFolder,
    read_masks,
    read_photo,
    read_photo_folder,
    require_enough_photos,
)
from coam.sfm.settings import refuse_other_matches
from coam.sfm.tracks.align_graph import TrackAlignOptions
from coam.sfm.tracks.match_graph import Keypoints, load_keypoints
from coam.sfm.tracks.merge import MergeOptions
from coam.sfm.verification.focal import FocalOptions
from coam.sfm.verification.path_consistency import PathConsistencyOptions
from coam.sfm.verification.two_view import VerifyOptions
from coam.sfm.workers.choose import choose_workers
from coam.sfm.workers.pool import HERE, Workers
from coam.store.atomic import remove_leftovers

Say = Callable[[str], None]
Tracks = Literal["quantised", "merged", "refined"]
Orientation = Literal["auto", "as-is"]


@dataclass(frozen=True)
class SfmOptions:
    """Everything that changes a model."""

    pairing: Pairing = "auto"  # "model" and "poses" take pairs from a model with known poses
    pairs_file: str | None = None  # two names per line; replaces pairing
    neighbours: int = 20  # retrieval: similar photos matched with each photo
    orientation: Orientation = "auto"  # photos that lie on their side are found, and matched upright
    cameras: CameraChoice = field(default_factory=CameraChoice)
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    focal: FocalOptions = field(default_factory=FocalOptions)
    cycle_error: float = 15.0  # degrees a triangle of relative rotations may fail to close
    uncalibrated_cycle_error: float = 45.0  # degrees: guessed focal lengths bend right rotations by so much
    path_consistency: PathConsistencyOptions = field(default_factory=PathConsistencyOptions)
    tracks: Tracks = "refined"  # how keypoints get sub-pixel positions
    align: TrackAlignOptions = field(default_factory=TrackAlignOptions)
    merge: MergeOptions = field(default_factory=MergeOptions)
    mapper: MapperOptions = field(default_factory=MapperOptions)
    georeference: bool = False  # the model in metres, east, north and up, by the photos' GPS positions
    distances: str | None = None  # file of measured distances that give the model its scale
    masks: str | None = None  # folder of NAME.png beside the photos' names; black pixels are not used
    workers: int = 1  # processes of this machine, where a workspace is opened with no workers of its own

    RECORDED: ClassVar[str] = (
        "SfmOptions(pairing, pairs_file, neighbours, cameras, verify, cycle_error, detours=path_consistency, "
        "tracks, align, merge, mapper, masks, workers)"
    )


@dataclass(frozen=True)
class Workspace:
    """A model folder, the photos that it is made from, and how."""

    files: ModelFolder
    photos: PhotoFolder
    cameras: PhotoCameras  # their focal lengths are improved on the way
    masks: Mapping[str, npt.NDArray[np.bool_]]  # photo name -> (H, W) usable pixels
    matcher: Any
    options: SfmOptions
    reference: Any = None  # pycolmap model whose poses and cameras are known
    say: Say = lambda line: None
    show_progress: bool = False
    workers: Workers = HERE  # where pairs are matched, verified and aligned ...
    load: LoadMatcher | None = None  # ... matched only with this, which makes the matcher in a worker
    turns: Mapping[str, int] = field(
        default_factory=dict
    )  # quarters by which photos are turned to be matched
    began: float = field(default_factory=time.monotonic)

    @property
    def upright(self) -> PhotoFolder:
        """The photos as they are matched: those that lie on their side as upright copies."""
        return upright_folder(self.photos, self.turns, self.files.upright) if self.turns else self.photos


def open_workspace(
    photos: str | Path,
    output: str | Path,
    matcher: Any,
    options: SfmOptions | None = None,
    say: Say = lambda line: None,
    show_progress: bool = False,
    overwrite: bool = False,
    reference: str | Path | None = None,
    workers: Workers | None = None,
    load: LoadMatcher | None = None,
) -> Workspace:
    """Read the photos of a reconstruction and check everything that can be checked before hours of matching.

    matcher: `coam.Matcher` or anything with `match_many`. overwrite: match again where `output` holds matches
    of another matcher, instead of refusing. reference: a COLMAP model whose poses and cameras are kept.
    workers: by default as many processes of this machine as the options say. load: makes the same matcher in
    a worker (picklable); without it pairs are matched in this process.
    """
    began = time.monotonic()
    files, options, matcher = ModelFolder(output), options or SfmOptions(), without_rematching(matcher)
    remove_leftovers(files.root)
    check_options(options, reference)
    if not overwrite:
        refuse_other_matches(files, matcher)
    known = None if reference is None else read_model(reference)
    folder = read_photo_folder(photos) if known is None else _photos_of_model(known, Path(photos))
    for line in folder.left_out:
        say(f"left out: {line}")
    if known is None:
        require_enough_photos(folder)
        cameras = make_cameras(folder.photos, options.cameras)
    else:
        cameras = _cameras_of_model(known, folder)
    masks = read_masks(folder, options.masks)
    workers = workers or choose_workers(options.workers)
    return Workspace(
        files, folder, cameras, masks, matcher, options, known, say, show_progress, workers, load, began=began
    )


def check_options(options: SfmOptions, reference: str | Path | None = None) -> None:
    """Refuse what can be refused before any photo is read. reference: a COLMAP model with known poses."""
    if options.pairing not in get_args(Pairing):
        raise ConfigError(
            f"there is no pairing {options.pairing}; choose auto, exhaustive, sequential or retrieval"
        )
    if options.pairing in ("model", "poses") and reference is None:
        raise ConfigError(f"--pairing {options.pairing} takes pairs from a model; give one with --reference")
    camera_for_photo(Photo("any", Path(), (640, 480), ""), options.cameras.model)
    if options.pairs_file is not None:
        read_pairs(options.pairs_file)
    if options.georeference and options.distances is not None:
        raise ConfigError("--georeference and --distances both give the model its scale; choose one")
    if options.distances is not None:
        read_distances(options.distances)
    if options.masks is not None and not Path(options.masks).is_dir():
        raise DataError(f"{options.masks}: no such folder; give one with a NAME.png for each photo to mask")


def _photos_of_model(model: Any, photos: Path) -> PhotoFolder:
    """The photos that a model with known poses has registered, where `photos` holds them."""
    names = sorted(registered_images(model))
    there = [name for name in names if (photos / name).is_file()]
    if not there:
        raise DataError(f"{photos}: holds none of the {len(names)} photos of the model; give their folder")
    lost = sorted(set(names) - set(there))
    left_out = [f"{lost[0]} and {len(lost) - 1} more photos of the model are not in {photos}"] if lost else []
    return PhotoFolder(photos, tuple(read_photo(photos / name, name) for name in there), tuple(left_out))


def _cameras_of_model(model: Any, folder: PhotoFolder) -> PhotoCameras:
    """The cameras of a model with known poses; their focal lengths count as known."""
    camera_of = {name: image.camera_id for name, image in registered_images(model).items()}
    ids = sorted({camera_of[name] for name in folder.names})
    cameras = tuple(model.camera(camera_id) for camera_id in ids)
    for camera in cameras:
        camera.has_prior_focal_length = True
    return PhotoCameras(cameras, {name: ids.index(camera_of[name]) for name in folder.names})


def load_model(folder: str | Path) -> tuple[Any, Keypoints]:
    """The (largest) pycolmap model and the keypoints of a model folder."""
    files = ModelFolder(folder)
    return read_model(files.require_model()), load_keypoints(files.keypoints)
