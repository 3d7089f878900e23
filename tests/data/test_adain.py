"""Style transfer: statistics, alignment, loading; small random networks, real weights where given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from coam.data.adain import AdaIN, adaptive_instance_norm, channel_statistics
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


def test_a_file_that_is_no_adain_is_refused(tmp_path: Path) -> None:
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
