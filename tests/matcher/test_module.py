"""The module: batches of tensors in and out, the same as one pair at a time, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coam
from coam import samples
from coam.errors import ConfigError, ImageError
from coam.images import load_image
from coam.losses.correspondence import dual_softmax
from coam.matcher.module import CoAM
from coam.matching.grid import sample_map
from support.match_rules import needs_weights

YARD = samples.courtyard()


def photo(name: str, step: int = 2) -> Tensor:
    """A view of the courtyard (1, 3, 480 / step, 640 / step), uint8."""
    rgb = load_image(YARD.image(name)).rgb
    shrunk = rgb.reshape(480 // step, step, 640 // step, step, 3).mean(axis=(1, 3)).round().astype(np.uint8)
    return torch.from_numpy(shrunk).permute(2, 0, 1)[None]


@pytest.fixture(scope="module")
def module() -> CoAM:
    return coam.CoAM(max_matches=500).eval()


@pytest.fixture(scope="module")
def batch() -> dict[str, Tensor]:
    names0, names1 = ("day_04", "day_05", "day_04"), ("night_02", "day_06", "day_04")
    return {
        "image0": torch.cat([photo(name) for name in names0]),
        "image1": torch.cat([photo(name) for name in names1]),
    }


@pytest.fixture(scope="module")
def out(module: CoAM, batch: dict[str, Tensor]) -> dict[str, Any]:
    with torch.no_grad():
        return module(batch)


def of(out: dict[str, Any], pair: int) -> list[Tensor]:
    mine = out["batch_indexes"] == pair
    return [out[name][mine] for name in ("keypoints0", "keypoints1", "confidence")]


@needs_weights
def test_shapes_order_and_places(out: dict[str, Any]) -> None:
    assert set(out) == {"keypoints0", "keypoints1", "confidence", "batch_indexes"}
    count = len(out["confidence"])
    assert out["keypoints0"].shape == out["keypoints1"].shape == (count, 2)
    assert out["batch_indexes"].dtype == torch.int64
    assert (out["batch_indexes"].diff() >= 0).all()
    for pair in range(3):
        points0, points1, confidence = of(out, pair)
        assert 100 < len(confidence) <= 500
        assert (confidence.diff() <= 0).all()
        assert ((confidence > 0) & (confidence <= 1)).all()
        for points in (points0, points1):
            assert ((points >= 0) & (points <= torch.tensor([319.0, 239.0]))).all()
    points0, points1, _ = of(out, 2)  # a photo with itself
    assert (points0 - points1).norm(dim=1).max() < 0.5


@needs_weights
def test_a_batch_is_its_pairs(module: CoAM, batch: dict[str, Tensor], out: dict[str, Any]) -> None:
    for pair in range(3):
        with torch.no_grad():
            alone = module({name: images[pair : pair + 1] for name, images in batch.items()})
        points0, points1, confidence = of(out, pair)
        assert len(alone["confidence"]) == len(confidence)
        torch.testing.assert_close(alone["keypoints0"], points0)
        torch.testing.assert_close(alone["keypoints1"], points1, atol=1e-2, rtol=0)
        torch.testing.assert_close(alone["confidence"], confidence, atol=1e-3, rtol=0)


@needs_weights
def test_the_same_as_the_matcher(module: CoAM, batch: dict[str, Tensor]) -> None:
    """At the size the tensors have, which the matcher does not change if it is a multiple of 32."""
    options: dict[str, Any] = {"looks": "once", "alignment": "none", "max_matches": 500, "backend": "plain"}
    matcher = coam.load_matcher(device="cpu", resolution=320, **options)
    pair = {name: images[1:2, :, :224] for name, images in batch.items()}
    matches = matcher.match(pair["image0"][0], pair["image1"])
    with torch.no_grad():
        points0, points1, confidence = of(module(pair), 0)
    rows = {(x, y): row for row, (x, y) in enumerate(points0.tolist())}
    both = [(k, rows[x, y]) for k, (x, y) in enumerate(matches.points0.tolist()) if (x, y) in rows]
    assert len(both) > 0.98 * len(matches)  # rounding decides who is the five hundredth
    mine, theirs = (list(index) for index in zip(*both, strict=True))
    np.testing.assert_allclose(matches.points1[mine], points1[theirs].numpy(), atol=0.02)
    np.testing.assert_allclose(matches.scores[mine], confidence[theirs].numpy(), atol=0.02)


@needs_weights
def test_floats_and_grey_and_other_sizes(module: CoAM, batch: dict[str, Tensor], out: dict[str, Any]) -> None:
    first = {name: images[:1] for name, images in batch.items()}
    with torch.no_grad():
        floats = module({name: images.float() / 255 for name, images in first.items()})
        grey = module({name: images.float().mean(1, keepdim=True) / 255 for name, images in first.items()})
        odd = module({"image0": first["image0"][..., :201, :299], "image1": first["image1"]})
    torch.testing.assert_close(floats["keypoints1"], of(out, 0)[1])
    assert len(grey["confidence"]) > 50
    assert len(odd["confidence"]) > 50
    assert (odd["keypoints0"] <= torch.tensor([298.0, 200.0])).all()


@needs_weights
def test_masks(module: CoAM, batch: dict[str, Tensor]) -> None:
    usable = torch.ones(3, 240, 320)
    usable[0, :, :160] = 0
    usable[1] = 0
    with torch.no_grad():
        found = module({**batch, "mask0": usable, "mask1": torch.ones(3, 1, 240, 320, dtype=torch.bool)})
    assert (of(found, 0)[0][:, 0] > 159.5).all()
    assert len(of(found, 0)[2]) > 30
    assert len(of(found, 1)[2]) == 0
    assert len(of(found, 2)[2]) > 100


@needs_weights
def test_it_trains_through() -> None:
    """A few steps on one pair with known correspondence make its loss smaller; matches carry no gradient."""
    module = coam.CoAM().train()
    torch.manual_seed(0)
    image = photo("day_04", 4)
    noisy = (image.float() / 255 + 0.2 * torch.randn(image.shape)).clamp(0, 1)
    points = torch.rand(1, 64, 2) * torch.tensor([159.0, 119.0])
    optimiser = torch.optim.SGD(module.parameters(), lr=0.002)
    losses = []
    for _ in range(4):
        out = module({"image0": image, "image1": noisy})
        assert not out["confidence"].requires_grad
        sampled = [
            sample_map(dense.descriptors, points, dense.stride, normalise=True)
            for dense in (out["dense0"], out["dense1"])
        ]
        loss = dual_softmax(*sampled, torch.ones(1, 64, dtype=torch.bool), module.network.logit_scale)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    reached = [name for name, weight in module.named_parameters() if weight.grad is not None]
    assert any(name.startswith("network.encoder") for name in reached)
    assert losses[-1] < 0.9 * losses[0]


def test_it_is_a_module(module: CoAM) -> None:
    assert isinstance(module, torch.nn.Module)
    assert sum(weight.numel() for weight in module.parameters()) > 1_000_000
    assert "max_matches=500" in repr(module)
    copy = coam.CoAM()
    copy.load_state_dict(module.state_dict())


def test_what_is_refused(module: CoAM) -> None:
    image = torch.zeros(1, 3, 64, 64)
    for data, message in (
        ({"image0": image}, "has no 'image1'"),
        (
            {"image0": image[0], "image1": image},
            r"image0: has shape \(3, 64, 64\); give a tensor \(B, 3, H, W\)",
        ),
        ({"image0": image, "image1": image.long()}, "image1: has values of type torch.int64"),
        ({"image0": image, "image1": image.repeat(2, 1, 1, 1)}, "image0 has 1 images and image1 2"),
        ({"image0": image, "image1": image, "mask1": image[:, 0, :32]}, r"mask1: has shape \(1, 32, 64\)"),
    ):
        with pytest.raises(ImageError, match=message), torch.no_grad():
            module(data)
    with pytest.raises(ConfigError, match="the module has no option 'looks'; it has grid, max_matches"):
        coam.CoAM(looks="once")
