"""Encoders against stored activations of the reference implementations, and loading of weights files."""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coam.errors import ConfigError, MissingExtraError, WeightsError
from coam.models.encoders import Encoder, build_encoder, load_pretrained
from coam.models.encoders.efficientnet import SameStride2Conv, lite1_name
from support import SHARED
from support.encoder_reference import (
    CASES,
    REFERENCE,
    formula_encoder,
    formula_values,
    level_summary,
    lite1_package_state,
    names_digest,
    synthetic_image,
)


def stored() -> dict[str, Any]:
    return json.loads(REFERENCE.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES)
def test_all_levels_equal_the_reference_implementation(case: str) -> None:
    encoder = formula_encoder(case)
    with torch.no_grad():
        levels = encoder(synthetic_image())
    expected = stored()[case]["levels"]
    assert len(levels) == len(expected) == 5
    for level, wanted, channels, stride in zip(
        levels, expected, encoder.channels, (2, 4, 8, 16, 32), strict=True
    ):
        assert list(level.shape) == wanted["shape"] == [1, channels, 64 // stride, 96 // stride]
        got = level_summary(level)
        assert wanted["std"] > 0.05  # the reference is alive: not all zero
        assert got["mean"] == pytest.approx(wanted["mean"], abs=2e-4 * wanted["std"])
        assert got["std"] == pytest.approx(wanted["std"], rel=2e-4)
        assert got["values"] == pytest.approx(wanted["values"], abs=2e-3 * wanted["std"])


def test_the_two_kinds_of_resnet50_differ() -> None:
    torchvision, original = stored()["resnet50"]["levels"], stored()["resnet50_original"]["levels"]
    assert torchvision[1] == original[1]  # no stride up to here
    assert abs(torchvision[2]["values"][4] - original[2]["values"][4]) > 1e-3


@pytest.mark.parametrize(
    ("name", "parameters", "head"),
    [("resnet34", 21_284_672, 0), ("resnet50", 23_508_032, 0), ("efficientnet_b1", 6_513_184, 412_160)],
)
def test_names_and_shapes_are_torchvisions(name: str, parameters: int, head: int) -> None:
    encoder = build_encoder(name)
    assert sum(p.numel() for p in encoder.parameters()) + head == parameters
    assert names_digest(encoder.state_dict()) == stored()[name]["names_sha256"]


def test_lite1_equals_the_package_it_takes_its_weights_from() -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    reference = package.EfficientNet.from_name("efficientnet-lite1", image_size=None).eval()
    state = reference.state_dict()
    values = {name: formula_values(lite1_name(name) or name, tuple(v.shape)) for name, v in state.items()}
    reference.load_state_dict(
        {name: v for name, v in values.items() if state[name].is_floating_point()}, strict=False
    )
    outputs: list[Tensor] = []
    for index in (0, 3, 6, 14, 20):
        reference._blocks[index].register_forward_hook(
            lambda _module, _inputs, output: outputs.append(output)
        )
    encoder = formula_encoder("efficientnet_lite1")
    image = synthetic_image()
    with torch.no_grad():
        reference.extract_features((image * 255 - 127) / 128)
        levels = encoder(image)
    for level, wanted in zip(levels, outputs, strict=True):
        assert (level - wanted).abs().max() < 1e-4 * wanted.std()


def test_stride_2_padding_puts_the_odd_pixel_right_and_below() -> None:
    conv = SameStride2Conv(1, 1, 3, 2, 0, bias=False)
    nn.init.ones_(conv.weight)
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    # Windows start at pixels 0 and 2: sums over [0:3]x[0:3], [0:3]x[2:4], [2:4]x[0:3], [2:4]x[2:4].
    assert conv(image).flatten().tolist() == [45.0, 39.0, 66.0, 50.0]
    five = SameStride2Conv(1, 1, 5, 2, 0, bias=False)
    nn.init.ones_(five.weight)
    # Windows start at pixels -1 and 1: all, without the first column, without the first row, without both.
    assert five(image).flatten().tolist() == [120.0, 120.0 - 24.0, 120.0 - 6.0, 120.0 - 24.0 - 6.0]


def test_preprocessing_travels_with_the_encoder() -> None:
    lite, b1 = build_encoder("efficientnet_lite1"), build_encoder("efficientnet_b1")
    assert lite.mean.flatten().tolist() == pytest.approx([127 / 255] * 3)
    assert lite.std.flatten().tolist() == pytest.approx([128 / 255] * 3)
    assert b1.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert not {"mean", "std"} & set(lite.state_dict())
    image = synthetic_image()
    lite.eval()
    with torch.no_grad():
        assert torch.equal(lite(image)[4], lite.pyramid((image - lite.mean) / lite.std, 5)[4])


@pytest.mark.parametrize("name", ["efficientnet_lite1", "resnet34"])
def test_the_first_levels_are_those_of_the_whole_pyramid(name: str) -> None:
    encoder, image = build_encoder(name).eval(), synthetic_image()
    with torch.no_grad():
        whole = encoder(image)
        for levels in (1, 3, 5):
            part = encoder(image, levels)
            assert len(part) == levels
            assert all(map(torch.equal, part, whole))


def test_sides_that_are_no_multiples_of_32_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32, got 64 x 100"):
        build_encoder("efficientnet_lite1")(torch.zeros(1, 3, 64, 100))


@pytest.mark.parametrize("name", ["efficientnet_lite1", "efficientnet_b1", "resnet34"])
def test_channels_last_and_bfloat16_change_little(name: str) -> None:
    encoder = formula_encoder(name)
    image = synthetic_image()
    with torch.no_grad():
        plain = encoder(image)
        encoder.to(memory_format=torch.channels_last)
        last = encoder(image.contiguous(memory_format=torch.channels_last))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = encoder(image)
    for level, same, rough in zip(plain, last, half, strict=True):
        assert (level - same).abs().max() < 1e-3 * level.std()
        assert (level - rough.float()).std() < 0.1 * level.std()


@pytest.mark.slow
def test_lite1_compiles_into_one_graph() -> None:
    encoder = formula_encoder("efficientnet_lite1")
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")  # raises on a graph break or host sync
    with torch.no_grad():
        assert torch.equal(compiled(synthetic_image())[4], encoder(synthetic_image())[4])


def test_gradients_reach_every_parameter() -> None:
    encoder = build_encoder("efficientnet_b1").train()
    sum(level.square().mean() for level in encoder(synthetic_image().repeat(2, 1, 1, 1))).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in encoder.parameters())


def test_public_layout_loads_without_classifier(tmp_path: Path) -> None:
    encoder = formula_encoder("efficientnet_b1")
    public = dict(encoder.state_dict())
    public["features.8.0.weight"] = torch.zeros(1280, 320, 1, 1)
    public["classifier.1.weight"] = torch.zeros(1000, 1280)
    torch.save(public, tmp_path / "b1.pth")
    fresh = build_encoder("efficientnet_b1")
    load_pretrained(fresh, tmp_path / "b1.pth")
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, public[name]), name


def test_lite1_names_cover_every_parameter_once() -> None:
    names = [lite1_name(name) for name in lite1_package_state()]
    assert sorted(str(name) for name in names) == sorted(build_encoder("efficientnet_lite1").state_dict())
    assert lite1_name("_blocks.0._depthwise_conv.weight") == "features.1.0.block.0.0.weight"
    assert lite1_name("_blocks.3._bn2.running_var") == "features.2.2.block.2.1.running_var"
    assert lite1_name("_blocks.20._expand_conv.weight") == "features.7.0.block.0.0.weight"
    assert lite1_name("_conv_head.weight") is None
    assert lite1_name("_bn1.weight") is None
    assert lite1_name("_fc.bias") is None


class Surprise:
    """What a hostile pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle ran code",))


def test_wrong_files_give_one_clear_line(tmp_path: Path) -> None:
    encoder = build_encoder("efficientnet_lite1")
    good = formula_encoder("efficientnet_lite1").state_dict()
    torch.save({"evil": Surprise()}, tmp_path / "evil.pth")
    (tmp_path / "noise.pth").write_bytes(b"not a weights file at all")
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "weights.txt").write_text("x")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save(formula_encoder("resnet34").state_dict(), tmp_path / "other.pth")
    torch.save({k: v for k, v in good.items() if k != "features.0.0.weight"}, tmp_path / "short.pth")
    torch.save({**good, "features.0.0.weight": torch.zeros(32, 3, 5, 5)}, tmp_path / "shape.pth")
    torch.save({**good, "extra.weight": torch.zeros(1)}, tmp_path / "extra.pth")
    torch.save(good, tmp_path / "cut.pth")
    whole = (tmp_path / "cut.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(whole[: len(whole) // 2])
    for file, message in {
        "absent.pth": "does not exist",
        "evil.pth": "holds more than tensors",
        "noise.pth": "damaged",
        "noise.safetensors": "damaged",
        "cut.pth": "damaged",
        "weights.txt": "neither .safetensors nor .pth",
        "list.pth": "holds no tensors by name",
        "other.pth": "lacks features.0.0.weight and",
        "short.pth": "lacks features.0.0.weight;",
        "shape.pth": "has a wrong shape of features.0.0.weight",
        "extra.pth": "has unknown extra.weight",
    }.items():
        with pytest.raises(WeightsError) as caught:
            load_pretrained(encoder, tmp_path / file)
        assert message in str(caught.value), file
        assert "\n" not in str(caught.value), file


def test_a_refused_file_leaves_the_encoder_as_it_was(tmp_path: Path) -> None:
    encoder = formula_encoder("efficientnet_lite1")
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    torch.save(
        {**before, "extra.weight": torch.zeros(1), "features.0.1.bias": torch.ones(32)}, tmp_path / "x.pth"
    )
    with pytest.raises(WeightsError):
        load_pretrained(encoder, tmp_path / "x.pth")
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_download_without_network_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(*_arguments: Any, **_options: Any) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(
        WeightsError, match=r"cannot fetch https://download\.pytorch\.org/models/resnet34-b627a593"
    ):
        load_pretrained(build_encoder("resnet34"), download=True)
    with pytest.raises(WeightsError, match="no public weights are known for ResNet50Encoder"):
        load_pretrained(build_encoder("resnet50", stride_on_first_conv=True), download=True)
    with pytest.raises(WeightsError, match="no weights named"):
        load_pretrained(build_encoder("resnet34"))


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no encoder 'vgg'; choose one of resnet34, resnet50"):
        build_encoder("vgg")
    with pytest.raises(
        ConfigError, match="encoder resnet34 has no option 'stride_on_first_conv'; it takes levels"
    ):
        build_encoder("resnet34", stride_on_first_conv=True)


def test_timm_models_where_timm_is_installed() -> None:
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):
        with pytest.raises(MissingExtraError, match=r"pip install .*\[timm\]'"):
            build_encoder("timm:resnet18")
        return
    encoder = build_encoder("timm:resnet18").eval()
    with torch.no_grad():
        levels = encoder(synthetic_image())
    assert [tuple(level.shape[1:]) for level in levels] == [
        (c, 64 // s, 96 // s) for c, s in zip(encoder.channels, (2, 4, 8, 16, 32), strict=True)
    ]
    with pytest.raises(ConfigError, match="strides"):
        build_encoder("timm:vit_tiny_patch16_224")


def same_place_margin(encoder: Encoder, photos: list[Tensor]) -> tuple[float, float]:
    """Cosine of mean-free pooled deepest features: lowest for crops of one photo, highest for two photos."""
    with torch.no_grad():
        crops = [p[..., a : a + 224, a : a + 224] for p in photos for a in (0, 32)]
        pooled = torch.stack([encoder(crop)[4].mean((2, 3))[0] for crop in crops])
    unit = nn.functional.normalize(pooled - pooled.mean(0), dim=1)
    cosine = unit @ unit.T
    owner = torch.arange(len(crops)) // 2
    same = (owner[:, None] == owner) & ~torch.eye(len(crops), dtype=torch.bool)
    return cosine[same].min().item(), cosine[owner[:, None] != owner].max().item()


@pytest.mark.slow
def test_imagenet_resnet50_tells_photos_apart() -> None:
    weights = SHARED / "weights" / "resnet50_imagenet_fp16.safetensors"
    if not weights.is_file():
        pytest.skip("no shared ImageNet weights")
    data = pytest.importorskip("skimage.data")
    pictures = [data.astronaut(), data.chelsea(), data.coffee(), data.rocket()]
    photos = [torch.from_numpy(p[:256, :256].copy()).permute(2, 0, 1)[None].float() / 255 for p in pictures]
    encoder = build_encoder("resnet50", stride_on_first_conv=True).eval()
    load_pretrained(encoder, weights)
    lowest_same, highest_other = same_place_margin(encoder, photos)
    assert lowest_same > 0.7
    assert highest_other < 0.3
