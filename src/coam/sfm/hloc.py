"""In and out of hloc pipelines: .h5 features and matches, and triangulation into a model with known poses.

hloc's keypoints have the centre of the first pixel at (0, 0), as ours; it adds COLMAP's half pixel itself on
import. A pair is stored under "name0/name1" with slashes inside names turned to dashes; `matches0` says for
every keypoint of image 0 which keypoint of image 1 it matches, or -1.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.geometry.coordinates import to_colmap
from coam.sfm.alignment import Pose, model_poses
from coam.sfm.cycles import CycleReport
from coam.sfm.database import read_database, write_database
from coam.sfm.journal import Pair, remove_leftovers, replacing, require_space
from coam.sfm.keypoints import Keypoints, Links, save_keypoints
from coam.sfm.mapping import quiet_colmap
from coam.sfm.match_pairs import looking_once, match_pairs, record_to_matches
from coam.sfm.model_files import write_model_page, write_models
from coam.sfm.pairs import write_pairs
from coam.sfm.photos import PhotoFolder, read_masks, read_photo
from coam.sfm.pipeline import (
    MatchAll,
    SfmOptions,
    check_options,
    count_tracks,
    counted,
    make_tracks,
    paths_and_digests,
    propose_pairs,
    summarise,
)
from coam.sfm.settings import claim_folder, refuse_other_matches, write_settings
from coam.sfm.verify import VerifiedPair, inside_border, unmasked, verify_with_poses
from coam.types import Size

Floats = npt.NDArray[np.float64]


# ---- files


def pair_key(name0: str, name1: str) -> str:
    """hloc's name of a pair."""
    return "/".join((name0.replace("/", "-"), name1.replace("/", "-")))


def write_features(path: str | Path, keypoints: Keypoints, sizes: Mapping[str, Size]) -> Path:
    """Keypoints of all photos as hloc's features.h5. sizes: photo name -> (width, height)."""
    import h5py

    path = Path(path)
    require_space(path, 2 * keypoints.positions.nbytes + (1 << 20))
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for index, name in enumerate(keypoints.names):
            group = file.create_group(name)
            points = group.create_dataset(
                "keypoints", data=keypoints.positions[keypoints.of(index)].astype(np.float32)
            )
            grid = keypoints.grids[index]
            points.attrs["uncertainty"] = 1.0 if grid is None else 0.1 * grid.step[0]
            group.create_dataset("image_size", data=np.array(sizes[name]))
    return path


def read_features(path: str | Path) -> dict[str, npt.NDArray[np.float32]]:
    """photo name -> keypoints (N, 2) of an hloc features.h5."""
    import h5py

    found: dict[str, npt.NDArray[np.float32]] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and name.endswith("/keypoints"):
            found[name.removesuffix("/keypoints")] = np.asarray(node[:], np.float32)[:, :2]

    with _opened(path) as file:
        file.visititems(visit)
    if not found:
        raise DataError(f"{path}: holds no keypoints; give hloc's features .h5")
    return found


def write_matches(path: str | Path, keypoints: Keypoints, links: Links) -> Path:
    """Verified matches of all pairs as hloc's matches.h5."""
    import h5py

    path = Path(path)
    number = {name: index for index, name in enumerate(keypoints.names)}
    longest = int(np.diff(keypoints.start).max(initial=0))
    require_space(path, 8 * longest * len(links.pairs) + (1 << 20))
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for index, (name0, name1) in enumerate(links.pairs):
            own0, own1 = keypoints.of(number[name0]), keypoints.of(number[name1])
            edges, held = links.of(index), links.held[links.of(index)]
            count = own0.stop - own0.start
            matches, scores = np.full(count, -1, np.int32), np.zeros(count, np.float16)
            row = links.measurements.first[edges][held] - own0.start
            matches[row] = links.measurements.second[edges][held] - own1.start
            scores[row] = links.measurements.weights[edges][held]
            group = file.create_group(pair_key(name0, name1))
            group["matches0"], group["matching_scores0"] = matches, scores
    return path


def read_matches(path: str | Path, pairs: Iterable[Pair]) -> dict[Pair, tuple[npt.NDArray[np.int64], Floats]]:
    """pair -> (indices (K, 2) of matching keypoints, scores (K,)) of an hloc matches.h5, stored in either
    order.
    """
    found: dict[Pair, tuple[npt.NDArray[np.int64], Floats]] = {}
    with _opened(path) as file:
        for name0, name1 in pairs:
            forward, backward = pair_key(name0, name1), pair_key(name1, name0)
            key = forward if forward in file else backward
            if key not in file:
                raise DataError(f"{path}: has no matches of {name0} and {name1}; match that pair first")
            matches = np.asarray(file[key]["matches0"][:], np.int64)
            row = np.flatnonzero(matches >= 0)
            index = np.stack([row, matches[row]], axis=1)
            scores = np.ones(len(row))
            if "matching_scores0" in file[key]:
                scores = np.asarray(file[key]["matching_scores0"][:], np.float64)[row]
            found[name0, name1] = (index if key == forward else index[:, ::-1]), scores
    return found


def database_to_hloc(database: str | Path, folder: str | Path) -> tuple[Path, Path, Path]:
    """Turn a COLMAP database into features.h5, matches.h5 and pairs.txt for hloc; gives the three paths."""
    import h5py

    folder = Path(folder)
    points, matches = read_database(database)
    features_path, matches_path = folder / "features.h5", folder / "matches.h5"
    longest = max((len(own) for own in points.values()), default=0)
    require_space(folder, 8 * longest * (len(points) + len(matches)) + (2 << 20))
    with replacing(features_path) as temporary, h5py.File(temporary, "w") as file:
        for name, own in points.items():
            file.create_group(name)["keypoints"] = own
    with replacing(matches_path) as temporary, h5py.File(temporary, "w") as file:
        for (name0, name1), index in matches.items():
            matches0 = np.full(len(points[name0]), -1, np.int32)
            matches0[index[:, 0]] = index[:, 1]
            group = file.create_group(pair_key(name0, name1))
            group["matches0"] = matches0
            group["matching_scores0"] = (matches0 >= 0).astype(np.float16)
    return features_path, matches_path, write_pairs(sorted(matches), folder / "pairs.txt")


def _opened(path: str | Path) -> Any:
    import h5py

    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: cannot be read; give an .h5 file written by hloc or coam") from error


# ---- known poses


def triangulate(
    reference: str | Path,
    photos: str | Path,
    output: str | Path,
    matcher: Any,
    pairs: Sequence[Pair] | None = None,
    options: SfmOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
    match_all: MatchAll | None = None,
    show_progress: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """A model with the poses of `reference` (a COLMAP model folder, for example Aachen's) and points from our
    matches.

    The output is a model folder as `coam sfm` makes it, so `coam localize` works in it. pairs: instead of
    those that `options` propose, by default the photos with most common points in the reference model. Of the
    options, `cameras`, `cycle_error` and `mapper` are not used: cameras and places are those of the
    reference. match_all, show_progress, overwrite: as in `coam.sfm.pipeline.run_sfm`.
    """
    quiet_colmap()
    options, output, photos = options or SfmOptions(), Path(output), Path(photos)
    matcher = looking_once(matcher)
    remove_leftovers(output)
    check_options(options)
    if not overwrite:
        refuse_other_matches(output, matcher)
    known = _read_reference(reference)
    folder = _photos_of_model(known, photos)
    for line in folder.left_out:
        say(f"left out: {line}")
    keep = read_masks(folder, options.masks)
    wanted, how = (pairs, "given") if pairs else propose_pairs(folder, matcher, options, known)
    wanted = [pair for pair in wanted if set(folder.names).issuperset(pair)]
    if not wanted:
        raise DataError(f"{reference}: gives no pairs of its photos ({how}); give them with --pairs")
    claim_folder(output, matcher, options, say)
    write_pairs(wanted, output / "pairs.txt")
    say(f"{len(folder.photos)} photos with known poses, {counted(len(wanted), 'pair')} ({how})")
    journal = output / "matches.h5"
    if match_all is None:
        matched = match_pairs(matcher, *paths_and_digests(folder), wanted, journal, show_progress)
    else:
        matched = match_all(folder, wanted, journal)
    poses = model_poses(known)
    cameras, camera_of, camera_by_name = _reference_cameras(known, folder)

    def verify(pair: Pair) -> VerifiedPair:
        first, second = pair
        matches = record_to_matches(matched.read(pair))
        usable = unmasked(matches, pair, keep) & inside_border(matches, options.verify.border)
        index = np.flatnonzero(usable)
        found = verify_with_poses(
            matches.select(index), camera_by_name[first], camera_by_name[second], poses[first], poses[second],
            options.verify,
        )  # fmt: skip
        return replace(found, inliers=index[found.inliers])

    verified = {pair: verify(pair) for pair in wanted}
    say(f"{sum(v.accepted for v in verified.values())} of {len(wanted)} pairs agree with the known poses")
    keypoints, links = make_tracks(folder, matched, verified, output, options, say)
    say(f"{count_tracks(keypoints)} tracks; triangulating")
    write_database(output / "database.db", keypoints, links, verified, cameras, camera_of)
    save_keypoints(keypoints, output / "keypoints.h5")
    model = _triangulate_points(output, keypoints, cameras, camera_of, poses)
    write_models([model], folder, output)
    write_settings(output, matcher, options)
    no_cycles = CycleReport({}, (), 0, 0)  # rotations are known, not measured
    summary = summarise(folder, [model], matched, verified, no_cycles, keypoints, options)
    matched.close()
    summary["photos_folder"] = os.path.relpath(photos, output)
    write_model_page([model], output / "model.html", say)
    with replacing(output / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def _read_reference(reference: str | Path) -> Any:
    import pycolmap

    try:
        return pycolmap.Reconstruction(Path(reference))
    except Exception as error:  # pycolmap raises plain errors of several kinds
        raise DataError(
            f"{reference}: holds no COLMAP model; give a folder with cameras, images and points3D"
        ) from error


def _photos_of_model(known: Any, photos: Path) -> PhotoFolder:
    names = sorted(model_poses(known))
    there = [name for name in names if (photos / name).is_file()]
    if not there:
        raise DataError(f"{photos}: holds none of the {len(names)} photos of the model; give their folder")
    lost = sorted(set(names) - set(there))
    left_out = [f"{lost[0]} and {len(lost) - 1} more photos of the model are not in {photos}"] if lost else []
    return PhotoFolder(photos, tuple(read_photo(photos / name, name) for name in there), tuple(left_out))


def _reference_cameras(known: Any, folder: PhotoFolder) -> tuple[list[Any], list[int], dict[str, Any]]:
    """Distinct cameras, the camera of each photo, and the same by name."""
    of_name = {known.image(i).name: known.image(i).camera for i in known.reg_image_ids()}
    numbers = sorted({of_name[name].camera_id for name in folder.names})
    position = {number: index for index, number in enumerate(numbers)}
    cameras = []
    for number in numbers:
        camera = known.camera(number)
        camera.has_prior_focal_length = True
        cameras.append(camera)
    return (
        cameras,
        [position[of_name[name].camera_id] for name in folder.names],
        {n: of_name[n] for n in folder.names},
    )


def _triangulate_points(
    output: Path,
    keypoints: Keypoints,
    cameras: Sequence[Any],
    camera_of: Sequence[int],
    poses: Mapping[str, Pose],
) -> Any:
    """COLMAP's triangulation over our database, poses fixed."""
    import pycolmap

    frame = pycolmap.Reconstruction()
    for index, camera in enumerate(cameras):
        camera.camera_id = index + 1
        frame.add_camera_with_trivial_rig(camera)
    for index, name in enumerate(keypoints.names):
        points = to_colmap(keypoints.positions[keypoints.of(index)])
        image = pycolmap.Image(
            name=name, camera_id=camera_of[index] + 1, image_id=index + 1, keypoints=points
        )
        rotation, translation = poses[name]
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(rotation), translation)
        frame.add_image_with_trivial_frame(image, pose)
    settings = pycolmap.IncrementalPipelineOptions()
    settings.random_seed = 0
    settings.extract_colors = False
    with tempfile.TemporaryDirectory(prefix="coam-") as work:
        model = pycolmap.triangulate_points(frame, output / "database.db", work, work, True, settings)
    model.update_point_3d_errors()
    return model
