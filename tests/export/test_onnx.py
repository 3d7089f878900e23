"""The exported graphs: numbers, sizes, what travels in them, and the example without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coam import samples
from coam.cli import build_app
from coam.models.registry import load_model
from support import REPOSITORY

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
SMALL_CAPSNET = {
    "encoder": "efficientnet_lite1",
    "decoder_widths": [16, 24],
    "descriptor_channels": 32,
    "coarse_share": 0.5,
}


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `coam export onnx --json` prints."""
    folder = tmp_path_factory.mktemp("onnx")
    result = CliRunner().invoke(build_app(), ["export", "onnx", "-o", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.fixture(scope="module")
def exported(summary: dict[str, Any]) -> tuple[Path, Path]:
    return Path(summary["files"][0]), Path(summary["files"][1])


def test_the_command_says_how_far_from_torch_it_is(summary):
    assert summary["difference"] < 1e-4


def test_a_model_that_is_not_there_is_refused(tmp_path):
    result = CliRunner().invoke(build_app(), ["export", "onnx", "--model", "nothing", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "there is no model 'nothing'" in result.output


def test_a_file_in_place_of_the_folder_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(build_app(), ["export", "onnx", "-o", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert result.output == f"error: {tmp_path / 'file'}: is a file; give a folder\n"


def test_the_check_can_fail(exported):
    import torch

    from coam.errors import CoamError
    from coam.export.onnx import check_onnx

    other = load_model()
    with torch.no_grad():
        other.model.to_descriptor.weight.neg_()
    with pytest.raises(CoamError, match="differ from torch"):
        check_onnx(other, exported)


def test_what_travels_in_the_files(exported):
    assert [path.name for path in exported] == ["cdunet-lite1.encode.onnx", "cdunet-lite1.decode.onnx"]
    facts = {entry.key: entry.value for entry in onnx.load(exported[1]).metadata_props}
    assert facts["name"] == "cdunet-lite1"
    assert facts["stride"] == "4"
    assert facts["meeting_side"] == "800"
    assert float(facts["temperature"]) == pytest.approx(load_model().model.logit_scale.item())
    assert json.loads(facts["card"]) == load_model().card
    assert facts["sha256"] == load_model().sha256


def test_sizes_are_free(exported):
    encode, decode = (onnxruntime.InferenceSession(str(path)) for path in exported)
    levels = []
    for height, width in ((64, 96), (160, 32)):
        levels += encode.run(None, {"image": np.zeros((1, 3, height, width), np.float32)})
    assert [level.shape[2:] for level in levels[:5]] == [(32, 48), (16, 24), (8, 12), (4, 6), (2, 3)]
    names = [entry.name for entry in decode.get_inputs()]
    outputs = decode.run(None, dict(zip(names, levels, strict=True)))
    shapes = {entry.name: array.shape for entry, array in zip(decode.get_outputs(), outputs, strict=True)}
    assert shapes["descriptors0"] == (1, 64, 16, 24)
    assert shapes["descriptors1"] == (1, 64, 40, 8)
    assert shapes["score1"] == (1, 1, 40, 8)
    assert shapes["fine0"] == (1, 32, 32, 48)


def test_the_example_finds_true_matches_without_torch(exported):
    pair = samples.motorcycle()
    program = REPOSITORY / "examples" / "match_with_onnxruntime.py"
    assert "torch" not in program.read_text()
    command = [sys.executable, program, str(exported[0])[: -len(".encode.onnx")], pair.left, pair.right]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = np.array([[float(word) for word in line.split()] for line in run.stdout.splitlines()])
    assert lines.shape == (1000, 5)
    truth, known = pair.true_points1(lines[:, :2].astype(np.float32))
    errors = np.linalg.norm(lines[known, 2:4] - truth[known], axis=1)
    cell = 4 * lines[:, 0].max() / 512  # pixels of the original between neighbouring descriptors
    assert (errors < 1.5 * cell).mean() > 0.9
    bare = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert bare.returncode == 1
    assert bare.stderr.startswith("usage: ")
    assert bare.stderr.count("\n") == 1
    for wrong in ([*command[:2], "nowhere/cdunet-lite1", pair.left, pair.right], [*command[:4], "none.jpg"]):
        failed = subprocess.run(wrong, capture_output=True, text=True, check=False)
        assert failed.returncode == 1
        assert "no such file; usage: python " in failed.stderr
        assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize("meeting", [(), (16,), (16, 8)])
def test_capsnet_is_exported_without_the_level_it_never_reads(meeting, tmp_path):
    import torch

    from coam.export.onnx import check_onnx, export_onnx
    from coam.models.registry import ModelFile, build_model

    torch.manual_seed(0)
    model = build_model("capsnet", SMALL_CAPSNET | {"coattention": meeting}).eval()
    file = ModelFile(model, "small", "capsnet", trained=False)
    paths = export_onnx(file, tmp_path)
    assert check_onnx(file, paths, size=(64, 96)) < 1e-4
    graph = onnx.load(paths[1])
    assert [entry.name for entry in graph.graph.input] == [
        f"level{stride}_{image}" for image in (0, 1) for stride in (4, 8, 16)
    ]
    assert {entry.key: entry.value for entry in graph.metadata_props}["fine_stride"] == "4"


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_extra_one_line_names_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(build_app(), ["export", "onnx", "-o", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {package} is not installed; install it with: pip install ")
    assert "[onnx]'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
