"""CAPSNet and its variants: the paper's layers, few added weights, and the face that matching needs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from coam.capsnet.network import CAPSNet, CAPSNetConfig
from coam.errors import ConfigError
from coam.matcher import Matcher
from coam.matching.settings import MatcherConfig
from coam.models.coattention import CoAttention
from coam.models.encoders import build_encoder
from coam.models.registry import MODELS, ModelFile, build_model, load_model, save_model
from support.small_networks import difference, picture, settled

VARIANTS = {"capsnet": (), "capsnet-c": (16,), "capsnet-cf": (16, 8)}


def small(**changes: object) -> CAPSNet:
    torch.manual_seed(1)
    options: dict[str, object] = {
        "encoder": "efficientnet_lite1",
        "decoder_widths": (16, 24),
        "descriptor_channels": 32,
        "projected_channels": (8, 8),
        **changes,
    }
    return settled(CAPSNet(CAPSNetConfig(**options)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def net() -> CAPSNet:
    return small(coattention=(16, 8))


@cache
def weights(name: str, **changes: object) -> int:
    with torch.device("meta"):  # shapes only
        architecture, config = MODELS[name]
        model = build_model(architecture, {**config, **changes})
    return sum(p.numel() for p in model.parameters())


def test_coattention_adds_few_weights() -> None:
    """The paper: less than 15 %. By hand for C: 2 (256 + 1) 32 projections, 32 (256 + 128) wider inputs."""
    base = weights("capsnet")
    assert base == 14_040_898
    assert weights("capsnet-c") - base == 2 * 257 * 32 + 32 * (256 + 128)
    assert weights("capsnet-cf") - weights("capsnet-c") == 2 * 129 * 16 + 16 * 256
    for encoder in ("resnet34", "resnet50", "efficientnet_lite1"):
        for name in ("capsnet-c", "capsnet-cf"):
            assert 1.0 < weights(name, encoder=encoder) / weights("capsnet", encoder=encoder) < 1.15


def test_layers_are_those_of_the_appendix() -> None:
    with torch.device("meta"):
        net = CAPSNet(CAPSNetConfig(coattention=(16, 8)))
    assert net.encoder.channels == (64, 64, 128, 256)  # nothing deeper than conv4_x
    for stride, channels, projected in (("8", 128, 16), ("16", 256, 32)):
        module = net.coattention[stride]
        assert isinstance(module, CoAttention)
        assert tuple(module.query.weight.shape) == (projected, channels, 1, 1)
        assert module.scale == 1.0

    def shapes(part: torch.nn.Module) -> list[tuple[int, ...]]:
        return [tuple(m.weight.shape) for m in part.modules() if isinstance(m, torch.nn.Conv2d)]

    assert shapes(net.deconv3) == [(256, 256 + 32, 1, 1), (512, 256, 3, 3)]
    assert shapes(net.deconv2) == [(256, 512 + 128 + 16, 1, 1), (512, 256, 3, 3), (256, 512, 3, 3)]
    assert shapes(net.deconv1) + shapes(net.to_descriptor) == [(512, 256 + 64, 3, 3), (128, 512, 3, 3)]
    assert shapes(net.to_coarse) == [(128, 256 + 32, 1, 1)]


def test_narrowing_before_upsampling_changes_nothing(net: CAPSNet) -> None:
    """The paper upsamples first; a 1x1 convolution and bilinear interpolation commute."""
    from coam.models.decoder import upsample

    features = torch.randn(1, net.deconv3.narrow.in_channels, 5, 7)
    with torch.no_grad():
        published = net.deconv3.convs(torch.relu(net.deconv3.norm(net.deconv3.narrow(upsample(features)))))
        assert difference(net.deconv3(features), published) < 1e-5


def test_normalisation_can_be_folded_across_the_upsampling(net: CAPSNet) -> None:
    """Interpolation keeps scale and offset, so a norm behind it belongs to the convolution before it."""
    from coam.models.folding import fold_batch_norm

    a, b = picture(64, 96), picture(64, 96, seed=1)
    with torch.no_grad():
        assert difference(net(a, b)[0].descriptors, fold_batch_norm(net)(a, b)[0].descriptors) < 1e-4


@pytest.mark.parametrize("size", [(64, 96), (70, 101), (33, 47)])
def test_maps_of_any_size_are_unit_vectors(net: CAPSNet, size: tuple[int, int]) -> None:
    with torch.no_grad():
        a, b = net(picture(*size), picture(64, 64, seed=1))
    assert a.descriptors.shape == (1, 32, (size[0] + 1) // 4, (size[1] + 1) // 4)
    assert a.coarse is not None
    assert b.coarse is not None
    assert b.coarse.shape == (1, 32, 4, 4)
    for unit in (a.descriptors, a.coarse):
        assert torch.allclose(unit.norm(dim=1), torch.ones(()), atol=1e-5)
    assert torch.equal(a.score, torch.ones_like(a.score))
    assert a.size == size


def test_who_depends_on_the_other_image(net: CAPSNet) -> None:
    a, others = picture(64, 64), [picture(64, 64, seed=s) for s in (1, 2)]
    with torch.no_grad():
        for model, meets in ((net, True), (small(), False)):
            first, second = (model(a, other)[0] for other in others)
            assert (difference(first.descriptors, second.descriptors) > 0.01) == meets
            assert (difference(first.coarse, second.coarse) > 0.005) == meets  # type: ignore[arg-type]


def test_one_batch_equals_two_and_swapping_swaps(net: CAPSNet) -> None:
    a, b = picture(64, 96), picture(64, 96, seed=1)
    with torch.no_grad():
        together, apart = net(a, b), net.decode(net.encode(a), net.encode(b))
        swapped = net(b, a)[::-1]
        alone = net._describe(net.encode(a), net.encode(b))
    for other in (apart, swapped):
        for one, two in zip(together, other, strict=True):
            assert difference(one.descriptors, two.descriptors) < 1e-5
    assert difference(together[0].descriptors, alone.descriptors) < 1e-5


def test_attention_maps_sum_to_one_and_leave_padding_out(net: CAPSNet) -> None:
    a, b = net.encode(picture(64, 64)), net.encode(picture(40, 64, seed=1))
    maps = net.attention_maps(a, b)
    assert {stride: tuple(m.shape) for stride, m in maps.items()} == {
        16: (1, 4, 4, 4, 4),
        8: (1, 8, 8, 8, 8),
    }
    for stride, attention in maps.items():
        assert torch.allclose(attention.sum(dim=(-2, -1)), torch.ones(()), atol=1e-5)
        inside = (40 + stride // 2) // stride if stride == 8 else 2
        assert float(attention[..., inside:, :].detach().abs().max()) == 0.0
    assert small().attention_maps(a, b) == {}


def test_coarse_descriptors_can_be_matched_too() -> None:
    """The inner product is the weighted mean of the two similarities; the fine map stays as it was."""
    plain, appended = small(coattention=(16,)), small(coattention=(16,), coarse_share=0.25)
    appended.load_state_dict(plain.state_dict())
    a, b = picture(70, 96), picture(70, 96, seed=1)
    with torch.no_grad():
        (one, two), (both, other) = plain(a, b), appended(a, b)
    assert both.descriptors.shape[1] == 64
    assert both.fine is not None
    assert both.fine_stride == 4
    assert torch.equal(both.fine, one.descriptors)
    assert torch.allclose(both.descriptors.norm(dim=1), torch.ones(()), atol=1e-5)
    fine = (one.descriptors * two.descriptors).sum(dim=1)
    together = (both.descriptors * other.descriptors).sum(dim=1)
    coarse = (both.descriptors[:, 32:] * other.descriptors[:, 32:]).sum(dim=1)
    assert torch.allclose(together, 0.75 * fine + coarse, atol=1e-5)
    # In the middle of a coarse cell the appended part points where the coarse descriptor does.
    assert one.coarse is not None
    middles = both.descriptors[:, 32:, 1:17:4, 1:23:4] + both.descriptors[:, 32:, 2:18:4, 2:24:4]
    agreement = torch.cosine_similarity(middles, one.coarse[:, :, :4], dim=1)
    assert agreement.min() > 0.6
    assert (
        torch.cosine_similarity(middles, one.coarse[:, :, :4].roll(1, -1), dim=1).mean()
        < agreement.mean() - 0.2
    )
    with pytest.raises(ConfigError, match="coarse_share must be at least 0 and below 1"):
        small(coarse_share=1.0)


def test_a_wrong_place_to_meet_is_refused() -> None:
    with pytest.raises(ConfigError, match="meet at strides 8 and 16, not 4"):
        CAPSNet(CAPSNetConfig(coattention=(4,)))


@pytest.mark.parametrize("name", ["resnet34", "resnet50", "efficientnet_lite1", "efficientnet_b1"])
def test_shorter_encoders_give_the_same_first_levels(name: str) -> None:
    torch.manual_seed(0)
    whole = build_encoder(name).eval()
    short = build_encoder(name, levels=4).eval()
    kept = short.with_own_names(whole.state_dict())
    assert kept.keys() == short.state_dict().keys()
    short.load_state_dict(kept)
    with torch.no_grad():
        image = picture(64, 64)
        levels = short(image)
        assert len(levels) == 4
        assert short.channels == whole.channels[:4]
        for one, two in zip(levels, whole(image), strict=False):
            assert torch.equal(one, two)
    with pytest.raises(ConfigError, match="1 to 5 levels, not 6"):
        build_encoder(name, levels=6)


@pytest.mark.parametrize("name", list(VARIANTS))
def test_names_and_files(name: str, tmp_path: Path) -> None:
    assert MODELS[name][1].get("coattention", ()) == VARIANTS[name]
    model = small(coattention=VARIANTS[name])
    file = load_model(save_model(model, tmp_path / "model.safetensors", name))
    assert file.architecture == "capsnet"
    assert file.model.config == model.config
    with torch.no_grad():
        a, b = picture(64, 64), picture(64, 64, seed=1)
        stored = file.model(a, b)[0].descriptors
        assert difference(stored, model(a, b)[0].descriptors) < 0.02  # half precision


def matcher(net: CAPSNet) -> Matcher:
    file = ModelFile(net, "capsnet-cf", "capsnet", trained=False)
    return Matcher(file, MatcherConfig(resolution=128, min_score=0.0), torch.device("cpu"))


def photos() -> tuple[np.ndarray, np.ndarray]:
    first = (picture(96, 128, seed=3)[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    return first, np.roll(first, (8, 12), axis=(0, 1))


def test_matching_and_explaining_work_as_for_every_model(net: CAPSNet) -> None:
    first, second = photos()
    found = matcher(net).match(first, second)
    assert len(found) > 20
    moved = found.points1 - found.points0
    assert np.abs(np.median(moved, axis=0) - [12, 8]).max() < 2.0
    told = matcher(net).explain(first, second, (60.0, 50.0))
    assert set(told.attention) == {"stride 16", "stride 8"}
    assert told.attention["stride 16"].shape == (6, 8)
    for attention in told.attention.values():
        assert attention.sum() == pytest.approx(1.0, abs=1e-4)
    assert told.similarity.shape == (24, 32)
    assert np.abs(np.array(told.best) - [72.0, 58.0]).max() < 3.0
    assert matcher(small()).explain(first, second, (60.0, 50.0)).attention == {}


def test_given_keypoints_get_their_matches_in_order(net: CAPSNet) -> None:
    first, second = photos()
    keypoints = np.array([[40.0, 40.0], [80.5, 60.25], [60.0, 30.0]], dtype=np.float32)
    found = matcher(net).match(first, second, keypoints0=keypoints)
    assert np.array_equal(found.points0, keypoints)
    assert np.abs(found.points1 - keypoints - [12, 8]).max() < 4.0
