"""Weights in 8 bits: what is kept, how far off, and that files of both kinds load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coam.models.quantised import quantise, restore
from coam.models.registry import build_model, load_model, save_model


def test_each_output_channel_has_its_own_scale() -> None:
    weight = torch.tensor([[1.27, -0.64, 0.011], [127.0, 3.4, -126.6]])
    stored = quantise({"w": weight, "bias": torch.tensor([0.5]), "count": torch.tensor(7)})
    assert stored["w"].tolist() == [[127, -64, 1], [127, 3, -127]]
    assert stored["w.scale"].tolist() == pytest.approx([0.01, 1.0])
    back = restore(stored)
    assert set(back) == {"w", "bias", "count"}
    assert back["w"][0].tolist() == pytest.approx([1.27, -0.64, 0.01])
    assert float(back["bias"]) == 0.5
    assert int(back["count"]) == 7


def test_an_error_is_at_most_half_a_step_and_zero_stays_zero() -> None:
    weight = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    weight[3] = 0.0
    back = restore(quantise({"w": weight}))["w"]
    step = weight.flatten(1).abs().amax(dim=1) / 127
    assert ((back - weight).flatten(1).abs().amax(dim=1) <= step / 2 + 1e-7).all()
    assert not back[3].any()


def test_a_tensor_that_happens_to_be_called_scale_is_kept() -> None:
    assert set(restore({"layer.scale": torch.ones(2), "layer.weight": torch.ones(2, 2)})) == {
        "layer.scale",
        "layer.weight",
    }


def test_a_model_in_8_bits_is_half_the_file_and_nearly_the_same_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model("cdunet", {"encoder": "efficientnet_lite1"}).eval()
    small = save_model(model, tmp_path / "small.safetensors", "small", dtype=torch.int8)
    large = save_model(model, tmp_path / "large.safetensors", "large")
    assert small.stat().st_size < 0.55 * large.stat().st_size
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact, _ = load_model(large).model(image, image)
        near, _ = load_model(small).model(image, image)
    similarity = (exact.descriptors * near.descriptors).sum(dim=1)
    assert float(similarity.mean()) > 0.99
