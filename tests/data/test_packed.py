"""The packed file: what goes in comes out, in our pixels, and nothing in it can run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from coam.data.pack_tracks import TrackScene, pack_tracks
from coam.data.packed import PackedRgbd, PackedTracks, concatenate_bytes, read_photo_as_jpeg
from coam.errors import DataError
from support.damage import flipped

pycolmap = pytest.importorskip("pycolmap")


def look_at(centre: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Camera-from-world (3, 4) of a camera at `centre` that looks at `target`, y down."""
    z = (target - centre) / np.linalg.norm(target - centre)
    x = np.cross([0.0, 1.0, 0.0], z)
    x /= np.linalg.norm(x)
    rotation = np.stack([x, np.cross(z, x), z])
    return np.concatenate([rotation, (-rotation @ centre)[:, None]], axis=1)


def write_colmap_scene(folder: Path, width: int = 200, height: int = 120) -> np.ndarray:
    """A text model: 3 photos see 40 points near the origin; camera 2 is half as far. Points (40, 3)."""
    random = np.random.default_rng(0)
    world = random.uniform(-0.4, 0.4, (40, 3))
    centres = [np.array([0.0, 0, -4]), np.array([4.0, 0, 0]), np.array([0.0, 0, -2])]
    model, photos = folder / "model", folder / "photos"
    model.mkdir(parents=True)
    photos.mkdir()
    (model / "cameras.txt").write_text(f"1 PINHOLE {width} {height} 150 150 {width / 2} {height / 2}\n")
    lines, tracks = [], [[] for _ in world]
    for index, centre in enumerate(centres):
        pose = look_at(centre, np.zeros(3))
        camera = world @ pose[:, :3].T + pose[:, 3]
        xy = camera[:, :2] / camera[:, 2:] * 150 + [width / 2, height / 2]  # COLMAP's pixels
        quaternion = pycolmap.Rotation3d(pose[:, :3]).quat  # x, y, z, w
        name = f"{index}.png"
        values = [quaternion[3], *quaternion[:3], *pose[:, 3]]
        lines.append(f"{index + 1} " + " ".join(f"{v:.17g}" for v in values) + f" 1 {name}")
        lines.append(" ".join(f"{x:.17g} {y:.17g} {k + 1}" for k, (x, y) in enumerate(xy)))
        for k, track in enumerate(tracks):
            track.append(f"{index + 1} {k}")
        Image.fromarray(random.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(photos / name)
    (model / "images.txt").write_text("\n".join(lines) + "\n")
    (model / "points3D.txt").write_text(
        "".join(
            f"{k + 1} {p[0]:.17g} {p[1]:.17g} {p[2]:.17g} 0 0 0 0.5 {' '.join(track)}\n"
            for k, (p, track) in enumerate(zip(world, tracks, strict=True))
        )
    )
    return world


def test_tracks_survive_the_file_in_our_pixels(tmp_path: Path) -> None:
    world = write_colmap_scene(tmp_path)
    pack_tracks([TrackScene("toy", tmp_path / "model", tmp_path / "photos")], tmp_path / "toy.safetensors")
    packed = PackedTracks.load(tmp_path / "toy.safetensors")
    assert packed.names == ("toy/0.png", "toy/1.png", "toy/2.png")
    assert packed.photo(0).shape == (120, 200, 3)
    assert packed.pair_shared.tolist() == [40, 40, 40]
    # The packed camera projects the packed 3D point onto the packed observation: all three agree to 1e-3 px.
    for image in range(3):
        ids, xy, depth = packed.observations(image)
        camera = world[ids] @ packed.poses[image, :, :3].T + packed.poses[image, :, 3]
        fx, fy, cx, cy = packed.intrinsics[image]
        assert (cx, cy) == (99.5, 59.5)
        expected = camera[:, :2] / camera[:, 2:] * [fx, fy] + [cx, cy]
        np.testing.assert_allclose(xy, expected, atol=1e-3)
        np.testing.assert_allclose(depth, camera[:, 2], rtol=1e-5)


def test_pair_facts_are_those_of_the_cameras(tmp_path: Path) -> None:
    write_colmap_scene(tmp_path)
    packed = pack_tracks(
        [TrackScene("toy", tmp_path / "model", tmp_path / "photos")], tmp_path / "t.safetensors"
    )
    angle = {tuple(pair): a for pair, a in zip(packed.pairs.tolist(), packed.pair_angle, strict=True)}
    assert angle[0, 1] == pytest.approx(90, abs=3)  # cameras at a right angle around the points
    assert angle[0, 2] < 8


def test_shrinking_moves_points_and_camera_together(tmp_path: Path) -> None:
    write_colmap_scene(tmp_path)
    scene = [TrackScene("toy", tmp_path / "model", tmp_path / "photos")]
    full = pack_tracks(scene, tmp_path / "full.safetensors")
    half = pack_tracks(scene, tmp_path / "half.safetensors", max_side=100)
    assert half.sizes[0].tolist() == [100, 60]
    np.testing.assert_allclose(half.observation_xy, (full.observation_xy + 0.5) / 2 - 0.5, atol=1e-4)
    np.testing.assert_allclose(half.intrinsics[0], [75, 75, 49.5, 29.5])


def test_jpeg_bytes_are_kept_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (30, 20), (200, 10, 30)).save(path)
    assert read_photo_as_jpeg(path, max_side=None) == (path.read_bytes(), (30, 20))
    assert read_photo_as_jpeg(path, max_side=15)[1] == (15, 10)


def test_a_flipped_bit_is_noticed_wherever_it_lies(tmp_path: Path) -> None:
    write_colmap_scene(tmp_path)
    path = tmp_path / "toy.safetensors"
    pack_tracks([TrackScene("toy", tmp_path / "model", tmp_path / "photos")], path)
    for damaged in flipped(path.read_bytes(), 60, seed=0):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="pack it again"):
            PackedTracks.load(path)


def test_equal_photos_are_stored_once() -> None:
    data, spans = concatenate_bytes([b"abc", b"de", b"abc"])
    assert data.tobytes() == b"abcde"
    assert spans.tolist() == [[0, 3], [3, 5], [0, 3]]


def test_a_photo_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_colmap_scene(tmp_path)
    Image.new("RGB", (100, 100)).save(tmp_path / "photos" / "1.png")
    with pytest.raises(DataError, match="shape of its camera"):
        pack_tracks([TrackScene("toy", tmp_path / "model", tmp_path / "photos")], tmp_path / "t.safetensors")


def test_a_missing_photo_and_a_missing_model_are_named(tmp_path: Path) -> None:
    write_colmap_scene(tmp_path)
    (tmp_path / "photos" / "1.png").unlink()
    with pytest.raises(DataError, match=r"1\.png is missing"):
        pack_tracks([TrackScene("toy", tmp_path / "model", tmp_path / "photos")], tmp_path / "t.safetensors")
    with pytest.raises(DataError, match="no COLMAP model"):
        pack_tracks([TrackScene("toy", tmp_path / "photos", tmp_path / "photos")], tmp_path / "t.safetensors")


def test_a_folder_of_coam_sfm_stands_for_its_largest_model(tmp_path: Path) -> None:
    write_colmap_scene(tmp_path)
    (tmp_path / "made" / "sparse").mkdir(parents=True)
    (tmp_path / "model").rename(tmp_path / "made" / "sparse" / "0")
    out = tmp_path / "t.safetensors"
    packed = pack_tracks([TrackScene("toy", tmp_path / "made", tmp_path / "photos")], out)
    assert len(packed.names) == 3
    again = pack_tracks([TrackScene("toy", tmp_path / "made" / "sparse" / "0", tmp_path / "photos")], out)
    np.testing.assert_array_equal(packed.observation_xy, again.observation_xy)


def test_other_files_are_refused_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        PackedTracks.load(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("not a tensor file at all")
    with pytest.raises(DataError, match="damaged"):
        PackedTracks.load(tmp_path / "text.safetensors")
    metadata = {"format": "coam-tracks-1", "scenes": json.dumps([]), "names": json.dumps([])}
    save_file({"jpeg": np.zeros(1, np.uint8)}, tmp_path / "other.safetensors", metadata=metadata)
    with pytest.raises(DataError, match="not coam-rgbd-1"):
        PackedRgbd.load(tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="damaged"):  # the right name, but arrays are missing
        PackedTracks.load(tmp_path / "other.safetensors")


def test_the_command_packs_and_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from coam.cli.data import register
    from coam.errors import ConfigError

    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    write_colmap_scene(tmp_path)
    scene, out = f"{tmp_path / 'model'}={tmp_path / 'photos'}", tmp_path / "t.safetensors"
    result = CliRunner().invoke(app, ["data", "pack-tracks", scene, "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["photos"], said["pairs"], said["bytes"]) == (3, 3, out.stat().st_size)
    assert isinstance(
        CliRunner().invoke(app, ["data", "pack-tracks", "x", "-o", str(out)]).exception, ConfigError
    )
    (tmp_path / "empty").mkdir()
    empty = CliRunner().invoke(
        app, ["data", "from-photos", str(tmp_path / "empty"), "-o", str(tmp_path / "m")]
    )
    assert isinstance(empty.exception, DataError)
    assert "holds no photos; give a folder with at least 2 of one place" in str(empty.exception)
