"""CAPSNet's protocol and table: three grades of rotation, held-out models, one command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pycolmap
import pytest
import torch
from tools.capsnet_table import PAPER, Settings, find_models, main, markdown, measure
from tools.make_posed_benchmark import write_held_out
from typer.testing import CliRunner

from coam import samples
from coam.cli import build_app
from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.posed_pairs import load_posed_pairs, match_errors_pose
from coam.evaluation.runner import read_report
from coam.geometry.pose import rotation_angle
from coam.models.registry import build_model, save_model
from coam.types import Matches
from tools import capsnet_table, make_posed_benchmark

SMALL = {"encoder": "efficientnet_lite1", "decoder_widths": [16, 24], "descriptor_channels": 32}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two untrained variants; C is not there."""
    folder = tmp_path_factory.mktemp("runs")
    for name, places in (("capsnet", []), ("capsnet-cf", [16, 8])):
        torch.manual_seed(0)
        model = build_model("capsnet", {**SMALL, "coattention": places}).eval()
        save_model(model, folder / name / "model.safetensors", name)
    return folder


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held_out")
    courtyard = samples.courtyard()
    counts = write_held_out({"court": (courtyard.model_dir, courtyard.image_dir)}, folder, per_grade=3)
    assert counts == {"court": {"easy": 3, "medium": 3, "hard": 3}}
    return folder


def test_held_out_pairs_have_their_grade_and_true_cameras(held_out: Path) -> None:
    pairs = load_posed_pairs(held_out)
    assert [pair.subsets for pair in pairs] == [("easy",)] * 3 + [("medium",)] * 3 + [("hard",)] * 3
    for pair, (low, high) in zip(pairs, [(0, 15)] * 3 + [(15, 30)] * 3 + [(30, 60)] * 3, strict=True):
        assert pair.pose is not None
        assert low <= rotation_angle(pair.pose[:3, :3]) <= high
    scene, checked = samples.courtyard(), 0
    grid = np.stack(np.meshgrid(np.arange(20.0, 620, 50), np.arange(20.0, 460, 50)), axis=-1).reshape(-1, 2)
    for pair in pairs:
        names = [path.stem for path in (pair.image0, pair.image1)]
        if names[0] not in scene.depth_names:
            continue
        points1, valid = scene.true_points1(names[0], names[1], grid)
        none = np.full(int(valid.sum()), -1)
        score = np.ones(len(none), np.float32)
        true = Matches(
            grid[valid].astype(np.float32), points1[valid], score, none, none, (640, 480), (640, 480)
        )
        assert match_errors_pose(pair, true).max() < 0.1
        checked += len(none)
    assert checked > 20


def test_photos_are_straightened_as_colmap_means_it(tmp_path: Path) -> None:
    """A dot that the lens puts elsewhere comes back to where a pinhole camera sees it."""
    camera = pycolmap.Camera.create_from_model_name(1, "SIMPLE_RADIAL", 100.0, 200, 160)
    camera.params = [100.0, 100.0, 80.0, -0.2]
    ray = np.array([0.6, 0.5, 1.0])
    seen = camera.img_from_cam(ray[None])[0] - 0.5  # COLMAP's pixels to ours
    picture = np.zeros((160, 200, 3), np.uint8)
    yy, xx = np.mgrid[:160, :200]
    picture[...] = (255 * np.exp(-((xx - seen[0]) ** 2 + (yy - seen[1]) ** 2) / 8))[..., None]
    cv2.imwrite(str(tmp_path / "a b.png"), picture)
    view = SimpleNamespace(name="a b.png", camera=camera)
    make_posed_benchmark._write_undistorted(view, tmp_path, tmp_path / "out")
    straight = cv2.imread(str(tmp_path / "out" / "a_b.jpg"))[..., 0].astype(float)
    found = np.array([(straight * xx).sum(), (straight * yy).sum()]) / straight.sum()
    wanted = (make_posed_benchmark._matrix(camera) @ ray)[:2]
    assert np.abs(seen - wanted).max() > 5
    assert np.abs(found - wanted).max() < 0.5


def test_a_model_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no COLMAP model"):
        write_held_out({"x": (tmp_path, tmp_path)}, tmp_path / "out")


def test_the_command_line_describes_the_same_keypoints(runs: Path, held_out: Path, tmp_path: Path) -> None:
    """`coam eval posed-pairs --keypoints sift` and the table: same matcher, same pairs, same figures."""
    weights = runs / "capsnet-cf" / "model.safetensors"
    line = ["eval", "posed-pairs", "--root", held_out, "-m", weights, "--keypoints", "sift", "-o", tmp_path]
    plain = "--set min_score=0 --set looks=once --set min_distinctiveness=0"
    options = f"--resolution 128 --max-matches 300 --limit 2 --device cpu {plain}"
    result = CliRunner().invoke(build_app(), [*map(str, line), *options.split()])
    assert result.exit_code == 0, result.output
    found = read_report(tmp_path)
    assert found["matcher"]["matcher"] == "model+sift"
    assert found["matcher"]["config"]["max_keypoints"] == 300
    settings = Settings((held_out,), resolution=128, max_keypoints=300, limit=2, resamples=0, device="cpu")
    table = measure({"capsnet-cf": weights}, settings, tmp_path / "table")["capsnet-cf"]["pose"]
    assert table["matcher"]["config"] == found["matcher"]["config"]
    assert [pair["row"] for pair in table["pairs"]] == [pair["row"] for pair in found["pairs"]]
    assert min(pair["row"]["matches"] for pair in found["pairs"]) > 20


def test_the_table_from_models_to_markdown(
    runs: Path, held_out: Path, hpatches_root: Path, tmp_path: Path
) -> None:
    settings = Settings(
        (held_out,), hpatches_root, resolution=128, max_keypoints=200, limit=3, resamples=20, device="cpu"
    )
    models = find_models(runs)
    assert list(models) == ["capsnet", "capsnet-cf"]
    reports = measure(models, settings, tmp_path)
    tables = reports["capsnet"]["pose"]["tables"]
    assert [tables[grade]["pairs"]["value"] for grade in ("easy", "medium", "hard")] == [1, 1, 1]
    text = markdown(reports, tmp_path)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines()[:5]}
    for value in PAPER["capsnet"]:
        assert value in rows["CAPSNet"]
    assert rows["C CoAM"].count("not trained yet") == 3
    rotation = tables["hard"]["rotation acc@10"]["value"]
    assert f"| {100 * rotation:.1f}" in rows["CAPSNet"]
    assert "(1 pairs)" in rows["C+F CoAM"]
    assert "MMA@3" in text
    assert "| C+F CoAM | rotation acc@10 |" in text  # the difference to the baseline
    light = reports["capsnet-cf"]["invariance"]["tables"]["all"]
    l1 = [
        f"{light[f'L1 {how}']['value']:.3f} ± {light[f'std of L1 {how}']['value']:.3f}"
        for how in ("conditioned", "alone")
    ]
    cosines = [f"{light[f'cosine {how}']['value']:.3f}" for how in ("conditioned", "alone")]
    assert l1[0] != l1[1]
    planar = next(line for line in text.splitlines() if line.startswith("| C+F CoAM") and "±" in line)
    assert planar.endswith(f"| {' | '.join(l1 + cosines)} |")
    stamp = (tmp_path / "capsnet" / "pose" / "report.json").stat().st_mtime_ns
    pose_only = replace(settings, homography=None)
    again = measure({"capsnet": models["capsnet"]}, pose_only, tmp_path)["capsnet"]["pose"]
    assert again == reports["capsnet"]["pose"]
    assert (tmp_path / "capsnet" / "pose" / "report.json").stat().st_mtime_ns == stamp  # not made again
    fewer = replace(pose_only, limit=1)
    other = measure({"capsnet": models["capsnet"]}, fewer, tmp_path)["capsnet"]["pose"]
    assert len(other["pairs"]) == 1


def test_other_models_stand_beside(runs: Path, held_out: Path, tmp_path: Path) -> None:
    models = find_models(runs, ["cdunet-lite1"])
    assert list(models) == ["capsnet", "capsnet-cf", "cdunet-lite1"]
    del models["capsnet-cf"]
    settings = Settings((held_out,), resolution=128, max_keypoints=200, limit=3, resamples=20, device="cpu")
    reports = measure(models, settings, tmp_path)
    assert reports["cdunet-lite1"]["pose"]["matcher"]["config"]["keypoints"] == "sift"
    text = markdown(reports, tmp_path)
    row = next(line for line in text.splitlines() if line.startswith("| cdunet-lite1 | - |"))
    assert row.count("(1 pairs)") == 3
    assert "| cdunet-lite1 | rotation acc@10 |" in text  # minus CAPSNet
    with pytest.raises(ConfigError, match="a row is called capsnet already"):
        find_models(runs, ["elsewhere/capsnet.safetensors"])


def test_a_report_without_deviations_leaves_them_out() -> None:
    light = {"L1 conditioned": {"value": 6.1994}}
    assert capsnet_table._light_cell(light, "L1 conditioned") == "6.199"
    assert capsnet_table._light_cell(light, "L1 alone") == "-"


def test_without_any_report_nothing_is_claimed() -> None:
    text = capsnet_table.pose_table({})
    assert text.count("not trained yet") == 9
    assert capsnet_table.differences({}, Path()) == ""


def test_the_command(runs: Path, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [str(runs), "--pose", str(held_out), "--limit", "1", "--resolution", "96", "--device", "cpu"]
    assert main([*line, "-o", str(tmp_path / "out")]) == 0
    assert "not trained yet" in (tmp_path / "out" / "table.md").read_text()
    capsys.readouterr()
    assert main([str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    assert "holds none of capsnet, capsnet-c, capsnet-cf" in capsys.readouterr().err
    assert main([*line, "--scenes", "fox", "-o", str(tmp_path / "out")]) == 2
    assert "--scenes wants NAME=MODEL=PHOTOS" in capsys.readouterr().err
