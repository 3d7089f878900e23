from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from coam.errors import ConfigError, WeightsError
from coam.models.registry import config_from_dict
from coam.stylization.colours import Palette, structure_of, to_opponent, to_rgb
from coam.stylization.guided import fit_to_lightness, upsample_guided
from coam.stylization.network import StylizerConfig, StylizerNetwork, load_network, save_network
from coam.stylization.objective import Discriminator, feature_loss, fool_loss, judge_loss
from support.toy_pictures import textured

SMALL = StylizerConfig(widths=(8, 8, 8, 8, 8), refiner_width=8, refiner_blocks=1)


def shaken(config: StylizerConfig = SMALL) -> StylizerNetwork:
    """A network that says something wild everywhere."""
    torch.manual_seed(3)
    network = StylizerNetwork(config)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return network.eval()


def inputs(size: int = 64) -> tuple[torch.Tensor, ...]:
    pictures = [torch.from_numpy(textured(size, size, seed)) for seed in range(3)]
    view, style, sampled = (picture.permute(2, 0, 1)[None] / 255 for picture in pictures)
    return view, style, sampled, torch.rand(1, 4, size, size, generator=torch.Generator().manual_seed(0))


def test_opponent_colours_by_hand_and_back() -> None:
    red = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1)
    torch.testing.assert_close(to_opponent(red).flatten(), torch.tensor([0.299, -0.299, 0.701]))
    pictures = torch.rand(2, 3, 5, 7)
    torch.testing.assert_close(to_rgb(to_opponent(pictures)), pictures)


def test_the_palette_is_undone() -> None:
    style = torch.rand(2, 3, 20, 30)
    palette = Palette.of(style)
    normalised = palette.normalise(style)
    assert normalised.mean(dim=(2, 3)).abs().max() < 1e-4
    assert normalised[:, 1:].std(dim=(2, 3)).sub(1).abs().max() < 0.03
    torch.testing.assert_close(palette.colours(normalised), style, atol=1e-5, rtol=0)


def test_structure_knows_no_colour_and_no_exposure() -> None:
    view = inputs()[0] * 0.8 + 0.1
    grey = to_opponent(view)[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(structure_of(grey), structure_of(view), atol=1e-4, rtol=0)
    exposed = structure_of(view * 0.7 + 0.05) - structure_of(view)
    assert exposed.abs().mean() < 0.05


def test_a_grey_style_gives_grey_whatever_the_network_says() -> None:
    view, style, sampled, evidence = inputs()
    grey = to_opponent(style)[:, :1].expand(-1, 3, -1, -1)
    grey_sampled = to_opponent(sampled)[:, :1].expand(-1, 3, -1, -1)
    stage1, both = shaken()(view, grey, grey_sampled, evidence)
    coloured = shaken()(view, style, sampled, evidence)[1]
    for picture in (stage1, both):
        assert (picture.amax(dim=1) - picture.amin(dim=1)).mean() < 0.01
    assert (coloured.amax(dim=1) - coloured.amin(dim=1)).mean() > 0.1


def test_untrained_it_carries_the_style_from_where_it_is_known() -> None:
    view = inputs(128)[0]
    light = to_opponent(view)[:, :1]
    truth = torch.cat([0.1 + 0.5 * light, 0.05 + 0.3 * light, 0.3 + 0.2 * light], dim=1)  # a bluish evening
    sampled, evidence = truth.clone(), torch.ones(1, 4, 128, 128)
    sampled[..., 64:] = torch.rand(1, 3, 128, 64, generator=torch.Generator().manual_seed(1))  # nonsense,
    evidence[..., 64:] = 0.0  # known to be
    mended, both = StylizerNetwork(SMALL).eval()(view, truth, sampled, evidence)
    torch.testing.assert_close(mended, both)
    error = (mended - truth).abs().mean(dim=1)[0]
    assert error[:, :56].mean() < 0.01
    assert error[:, 72:].mean() < 0.02
    assert (sampled - truth).abs()[..., 72:].mean() > 0.2


def test_a_jittering_match_is_put_back_onto_the_edge() -> None:
    lightness = torch.zeros(1, 1, 32, 32)
    lightness[..., 16:] = 1.0
    truth = torch.cat([lightness, -lightness, 0.5 + 0 * lightness], dim=1)
    jitter = truth.clone()
    jitter[..., ::2, 16] = truth[..., ::2, 15]  # every second row is one pixel off
    fitted = fit_to_lightness(jitter, lightness, torch.ones(1, 1, 32, 32), radius=2)
    assert (jitter - truth).abs().max() == 1.0
    assert (fitted - truth).abs().max() < 0.4
    assert (fitted - truth).abs()[..., :12].max() < 0.02


def test_no_gradient_goes_from_stage_2_to_stage_1() -> None:
    view, style, sampled, evidence = inputs()
    network = shaken().train()
    _, both = network(view, style, sampled, evidence)
    both.sum().backward()
    assert all(p.grad is None for p in network.mender.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in network.refiner.parameters())


def test_sizes_of_the_default_network() -> None:
    network = StylizerNetwork()
    assert 2 * sum(p.numel() for p in network.parameters()) < 15e6  # bytes in float16
    stage1, both = network.eval()(*inputs(96))
    assert stage1.shape == both.shape == (1, 3, 96, 96)


def test_losses_of_the_discriminator_by_hand() -> None:
    def verdict(value: float, features: float = 0.0) -> list[list[torch.Tensor]]:
        return [[torch.full((1, 2, 3, 3), features), torch.full((1, 1, 2, 2), value)]]

    assert judge_loss(verdict(0.5), verdict(-2.0)).item() == pytest.approx(0.5)
    assert judge_loss(verdict(2.0), verdict(0.25)).item() == pytest.approx(1.25)
    assert fool_loss(verdict(0.7)).item() == pytest.approx(-0.7)
    assert feature_loss(verdict(0, 1.0), verdict(9, 0.25)).item() == pytest.approx(0.75)
    judged = Discriminator(width=4, scales=2)(torch.rand(2, 3, 64, 64), torch.rand(2, 2, 64, 64))
    assert [len(scale) for scale in judged] == [4, 4]
    assert judged[0][-1].shape[-1] > judged[1][-1].shape[-1]


def test_there_and_back_on_disk(tmp_path: Path) -> None:
    network = shaken()
    path = save_network(network, tmp_path / "made.safetensors", {"steps": 3})
    read = load_network(path)
    assert read.trained
    assert read.card == {"steps": 3}
    assert read.network.config == SMALL
    for a, b in zip(network(*inputs()), read.network(*inputs()), strict=True):
        assert (a - b).abs().mean() < 0.01
    for content, message in ((b"no", "readable"), (path.read_bytes()[:500], "readable")):
        (tmp_path / "bad.safetensors").write_bytes(content)
        with pytest.raises(WeightsError, match=message):
            load_network(tmp_path / "bad.safetensors")
    with pytest.raises(WeightsError, match="no such"):
        load_network(tmp_path / "none.safetensors")


def test_a_matcher_is_no_stylizer(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"format": "coam-1"})
    with pytest.raises(WeightsError, match="not a stylizer"):
        load_network(path)
    metadata = {"format": "coam-stylizer-1", "config": json.dumps({}), "card": "{}"}
    save_file({"a": torch.zeros(1)}, path, metadata)
    with pytest.raises(WeightsError, match="do not fit"):
        load_network(path)


def test_enlarging_keeps_the_detail_of_the_view() -> None:
    view = textured(300, 420, 5)
    view[::2, 100:200] //= 2  # detail that the small picture cannot show
    dark = (view * 0.4).astype(np.uint8)
    small = torch.from_numpy(dark).permute(2, 0, 1)[None].float() / 255
    small = torch.nn.functional.interpolate(small, size=(96, 128), mode="bilinear", antialias=True)[0]
    made = upsample_guided(small, view)
    assert made.shape == view.shape
    plain = torch.nn.functional.interpolate(small[None], size=(300, 420), mode="bilinear")[0]
    plain_error = np.abs(plain.permute(1, 2, 0).numpy() * 255 - dark).mean()
    assert np.abs(made.astype(float) - dark).mean() < 0.6 * plain_error
    assert upsample_guided(small, textured(90, 120, 1)).shape == (90, 120, 3)  # and where it must shrink


def test_there_are_widths_for_five_strides() -> None:
    with pytest.raises(ConfigError, match=r"StylizerConfig\.widths: \[\] is no list of 5 numbers"):
        config_from_dict(StylizerConfig, {"widths": []})
