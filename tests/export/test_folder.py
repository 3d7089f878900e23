"""Models as folders of a hub: there and back, and from files that other programs saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coam.errors import WeightsError
from coam.export.folder import export_folder
from coam.models.registry import load_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_folder(load_model("cdunet-lite1"), tmp_path / "hub")
    return tmp_path / "hub"


def test_a_folder_is_the_model(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    ours, again = load_model("cdunet-lite1"), load_model(folder)
    assert again.trained
    assert again.name == ours.name
    assert again.card == ours.card
    assert again.model.config == ours.model.config
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_config_json_speaks_for_weights_that_say_nothing(folder: Path) -> None:
    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt"})
    assert load_model(folder).architecture == "stacked"
    with pytest.raises(WeightsError, match="not a coam model"):
        load_model(weights)


def test_a_folder_with_two_models_and_a_broken_config_are_one_line(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")
    with pytest.raises(WeightsError, match=r"config\.json"):
        load_model(folder)
    (folder / "config.json").write_text(json.dumps({"format": "coam-1"}))
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    assert load_model(folder).name == "cdunet-lite1"  # the only one there is
    (folder / "b.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"2 \.safetensors files"):
        load_model(folder)
