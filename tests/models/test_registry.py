"""Model files: what is written is what is read, and everything else is refused in one line."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from coam.errors import ConfigError, DataError, WeightsError
from coam.models import registry
from coam.models.cdunet import CDUNetConfig
from coam.models.registry import (
    DEFAULT_MODEL,
    MODELS,
    architecture_of,
    build_model,
    config_from_dict,
    load_model,
    packaged_weights,
    save_model,
)
from coam.models.stacked import StackedCDUNet, StackedConfig
from support.small_networks import difference, picture, small_cdunet, small_stacked

CARD = {"licence": "Apache-2.0", "steps": 12, "pair_score": {"weights": [1.0, 2.5], "bias": -3.0}}


@pytest.fixture(scope="module")
def net() -> StackedCDUNet:
    return small_stacked()


@pytest.fixture
def file(net: StackedCDUNet, tmp_path: Path) -> Path:
    return save_model(net, tmp_path / "deep" / "small.safetensors", "small", CARD)


def refused(path: Path) -> str:
    """The one line with which `path` is refused."""
    with pytest.raises(WeightsError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def rewritten(file: Path, **changes: Any) -> Path:
    """The same tensors with other metadata; None leaves an entry out."""
    with safe_open(file, framework="pt") as opened:
        metadata = {**opened.metadata(), "checksum": None, **changes}
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    path = file.with_name("rewritten.safetensors")
    save_file(tensors, path, metadata={k: v for k, v in metadata.items() if v is not None})
    return path


# ---- round trip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_round_trip(net: StackedCDUNet, tmp_path: Path, dtype: torch.dtype) -> None:
    path = save_model(net, tmp_path / "small.safetensors", "small", CARD, dtype=dtype)
    loaded = load_model(path)
    assert (loaded.name, loaded.architecture, loaded.trained, loaded.card) == ("small", "stacked", True, CARD)
    assert loaded.model.config == net.config
    assert not loaded.model.training
    assert len(loaded.sha256) == 64
    for name, value in net.state_dict().items():
        expected = value.to(dtype).float() if value.is_floating_point() else value
        assert torch.equal(loaded.model.state_dict()[name], expected), name
    with torch.no_grad():
        ours, theirs = (
            net(picture(32, 32), picture(32, 32, 1))[0],
            loaded.model(picture(32, 32), picture(32, 32, 1))[0],
        )
    assert difference(ours.descriptors, theirs.descriptors) < (1e-6 if dtype is torch.float32 else 0.05)
    assert [p.name for p in tmp_path.iterdir()] == ["small.safetensors"]  # no temporary file is left


def test_round_trip_of_the_published_architecture_with_switches(tmp_path: Path) -> None:
    net = small_cdunet(attention_value="raw", attention_scale=0.5, distinctiveness=False)
    loaded = load_model(save_model(net, tmp_path / "p.safetensors", "p", dtype=torch.float32))
    assert loaded.architecture == "cdunet"
    assert loaded.model.config == net.config
    with torch.no_grad():
        pairs = zip(
            net(picture(32, 32), picture(32, 64)), loaded.model(picture(32, 32), picture(32, 64)), strict=True
        )
        assert all(torch.equal(one.descriptors, two.descriptors) for one, two in pairs)


def test_preprocessing_travels_in_the_file(tmp_path: Path) -> None:
    net = small_stacked()
    net.encoder.mean.fill_(0.25)  # not what the encoder's code says
    path = save_model(net, tmp_path / "other.safetensors", "other")
    with safe_open(path, framework="pt") as opened:
        assert json.loads(opened.metadata()["preprocessing"])["mean"] == [0.25, 0.25, 0.25]
    assert load_model(path).model.encoder.mean.flatten().tolist() == [0.25, 0.25, 0.25]


def test_a_file_without_preprocessing_uses_the_encoders(file: Path, net: StackedCDUNet) -> None:
    loaded = load_model(rewritten(file, preprocessing=None))
    assert torch.equal(loaded.model.encoder.mean, net.encoder.mean)


def test_metadata_is_json_with_every_configuration_field(file: Path, net: StackedCDUNet) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
        metadata.pop("checksum", None)
    assert set(json.loads(metadata["config"])) == {f.name for f in dataclasses.fields(StackedConfig)}
    assert json.loads(metadata["card"]) == CARD
    assert (metadata["format"], metadata["architecture"]) == ("coam-1", "stacked")


def test_a_failed_write_keeps_the_old_file(
    file: Path, net: StackedCDUNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()

    def full_disk(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", full_disk)
    with pytest.raises(DataError, match="the disk is full"):
        save_model(net, file, "small")
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]


# ---- refusals


def test_missing_file(tmp_path: Path) -> None:
    assert "no such weights file" in refused(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
def test_truncated_file(file: Path, kept: float) -> None:
    content = file.read_bytes()
    length = int(len(content) * kept) if isinstance(kept, float) else kept
    file.write_bytes(content[:length])
    assert "not a readable .safetensors file" in refused(file)


def test_text_and_folder(tmp_path: Path) -> None:
    text = tmp_path / "text.safetensors"
    text.write_text("<html>404</html>" * 20)
    assert "not a readable" in refused(text)
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    assert "no such weights file" in refused(folder)


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["pickle", "torch", "torch legacy"])
def test_a_pickle_under_another_name_is_never_run(tmp_path: Path, kind: str) -> None:
    trace, path = tmp_path / "trace", tmp_path / "weights.safetensors"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(trace)))
    else:
        torch.save({"weight": Bomb(trace)}, path, _use_new_zipfile_serialization=kind == "torch")
    assert "not a readable .safetensors file" in refused(path)
    assert not trace.exists()


def test_foreign_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    assert "not a coam model" in refused(path)
    save_file({"weight": torch.zeros(3)}, path, metadata={"format": "pt"})
    assert "not a coam model" in refused(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "transformer-9000"},
        {"architecture": "cdunet"},
        {"architecture": None},
        {"config": None},
        {"config": "{"},
        {"config": "[1, 2]"},
        {"config": '{"width": 48}'},
        {"config": '{"width": "wide"}'},
        {"config": '{"width": -3}'},
        {"config": '{"depth_of_the_sea": 3}'},
        {"config": '{"encoder": "vgg99"}'},
        {"config": '{"encoder_options": [3]}'},
        {"card": None},
        {"card": "[]"},
        {"preprocessing": "[]"},
        {"preprocessing": "{}"},
        {"preprocessing": '{"mean": [1, 2], "std": [1, 1, 1]}'},
    ],
    ids=str,
)
def test_metadata_that_does_not_fit(file: Path, changes: dict[str, Any]) -> None:
    assert "do not fit" in refused(rewritten(file, **changes))


def test_missing_surplus_and_misshapen_tensors(file: Path) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
        metadata.pop("checksum", None)
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    path = file.with_name("tensors.safetensors")
    first = "to_fine.weight"
    without = {key: value for key, value in tensors.items() if key != first}
    for wrong in (without, {**tensors, "surplus": torch.zeros(1)}, {**without, first: torch.zeros(2, 2)}):
        save_file(wrong, path, metadata=metadata)
        assert "do not fit" in refused(path)


# ---- names


@pytest.mark.parametrize("name", ["cdunet-lite2", "", "weights.pth", "../cdunet-lite1"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{', '.join(MODELS)} or give a \.safetensors"):
        load_model(name)


def test_every_name_has_an_architecture_and_a_valid_configuration() -> None:
    assert DEFAULT_MODEL in MODELS
    for architecture, config in MODELS.values():
        with torch.device("meta"):
            assert architecture_of(build_model(architecture, config)) == architecture


def test_a_model_without_weights_says_so_and_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "packaged_weights", lambda name: None)
    torch.manual_seed(77)
    first = load_model(DEFAULT_MODEL)
    following = torch.rand(1)
    torch.manual_seed(77)
    assert torch.equal(following, torch.rand(1))  # the caller's random numbers were left alone
    second = load_model(DEFAULT_MODEL)
    assert not first.trained
    assert first.sha256 == ""
    for one, two in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_packaged_weights_are_trained_and_load() -> None:
    path = packaged_weights(DEFAULT_MODEL)
    if path is None:
        pytest.skip("no trained weights in this checkout")
    loaded = load_model()
    assert loaded.trained
    assert loaded.name == DEFAULT_MODEL
    assert all(torch.isfinite(v).all() for v in loaded.model.state_dict().values())


def test_unknown_keys_architectures_and_networks() -> None:
    with pytest.raises(ConfigError, match="StackedConfig has no field 'widht'; it has encoder,"):
        config_from_dict(StackedConfig, {"widht": 3})
    with pytest.raises(ConfigError, match="there is no architecture 'x'; choose one of cdunet, stacked"):
        build_model("x", {})
    with pytest.raises(ConfigError, match="Linear is not a registered architecture"):
        architecture_of(nn.Linear(1, 1))


@pytest.mark.parametrize("widths", [[], [8] * 4, [8] * 6])
def test_a_decoder_has_as_many_widths_as_the_encoder_has_levels(widths: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"CDUNetConfig\.decoder_widths: .* is no list of 5 numbers"):
        config_from_dict(CDUNetConfig, {"decoder_widths": widths})


def test_lists_from_json_become_tuples() -> None:
    assert config_from_dict(CDUNetConfig, {"projected_channels": [1, 2]}).projected_channels == (1, 2)
