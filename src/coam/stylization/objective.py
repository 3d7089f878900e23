"""What the stylizer is trained to do: a discriminator, and the losses of both stages, for one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from coam.matching.flow import find_flow
from coam.models.network import DescriptorNetwork
from coam.models.outputs import DenseDescriptors
from coam.stylization.colours import Palette, structure_of
from coam.stylization.network import StylizerNetwork
from coam.stylization.pairs import StyleBatch
from coam.stylization.recipe import StylizeRecipe
from coam.stylization.sampled import SampledImage, sample_by_flow

JUDGED = 3 + 2  # channels that are judged: relative colours and VIEW's structure


class PatchDiscriminator(nn.Module):
    """One scale: every output position judges a patch of about 46 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (JUDGED, width, 2 * width, 4 * width)
        self.layers = nn.ModuleList(
            spectral_norm(nn.Conv2d(inputs, outputs, 4, stride=stride, padding=1))
            for (inputs, outputs), stride in zip(pairwise(widths), (2, 2, 1), strict=True)
        )
        self.verdict = spectral_norm(nn.Conv2d(widths[-1], 1, 4, padding=1))

    def forward(self, picture: Tensor) -> list[Tensor]:
        """Features of all layers, the verdict (B, 1, h, w) last."""
        features: list[Tensor] = []
        for layer in self.layers:
            picture = F.leaky_relu(layer(picture), 0.2)
            features.append(picture)
        return [*features, self.verdict(picture)]


class Discriminator(nn.Module):
    """Multi-scale patch discriminator (as in pix2pixHD): tells photos from made pictures."""

    def __init__(self, width: int = 48, scales: int = 2) -> None:
        super().__init__()
        self.scales = nn.ModuleList(PatchDiscriminator(width) for _ in range(scales))

    def forward(self, colours: Tensor, structure: Tensor) -> list[list[Tensor]]:
        """Per scale the features of relative colours (B, 3, H, W) that should show structure (B, 2, H, W)."""
        picture = torch.cat([colours, structure], dim=1)
        judged = []
        for scale in self.scales:
            judged.append(scale(picture))
            picture = F.avg_pool2d(picture, 2)
        return judged


def judge_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """Hinge loss of the discriminator: photos above 1, made pictures below -1."""
    losses = [
        F.relu(1 - r[-1].float()).mean() + F.relu(1 + m[-1].float()).mean()
        for r, m in zip(real, made, strict=True)
    ]
    return torch.stack(losses).mean()


def fool_loss(made: list[list[Tensor]]) -> Tensor:
    """Loss of the maker: its pictures should be judged photos."""
    return torch.stack([-m[-1].float().mean() for m in made]).mean()


def feature_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """Mean L1 distance of the discriminator's features (feature matching), the real ones detached."""
    distances = [
        F.l1_loss(b.float(), a.detach().float())
        for r, m in zip(real, made, strict=True)
        for a, b in zip(r[:-1], m[:-1], strict=True)
    ]
    return torch.stack(distances).mean()


@torch.no_grad()
def sample_batch(
    matcher: DescriptorNetwork, batch: StyleBatch, noise: float, generator: torch.Generator
) -> SampledImage:
    """Sampled images by the real matcher, as they will be when the stylizer is used.

    Half of the pairs get noise of a deviation up to `noise` on their descriptors: the photos are those the
    matcher was trained on, and on others it fails more often.
    """
    device = batch.view.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        dense0, dense1 = matcher(batch.view, batch.style)
    count = len(batch.view)
    draw = torch.rand(2, count, 1, 1, 1, generator=generator, device=device)
    deviation = noise * draw[0] * (draw[1] < 0.5)
    dense0, dense1 = (_noisy(dense, deviation, generator) for dense in (dense0, dense1))
    flow = find_flow(dense0, dense1, float(matcher.logit_scale))
    return sample_by_flow(batch.style, flow, (batch.view.shape[-2], batch.view.shape[-1]))


def _noisy(dense: DenseDescriptors, deviation: Tensor, generator: torch.Generator) -> DenseDescriptors:
    noise = torch.randn(dense.descriptors.shape, generator=generator, device=deviation.device)
    noisy = F.normalize(dense.descriptors.float() + noise * deviation, dim=1)
    return replace(dense, descriptors=noisy)


def weighted_l1(colours: Tensor, answer: Tensor, weight: Tensor) -> Tensor:
    """Mean absolute difference of colours (B, 3, H, W), each position weighted by weight (B, 1, H, W)."""
    difference = (colours - answer).abs().mean(dim=1, keepdim=True)
    return (difference * weight).sum() / weight.sum().clamp(min=1e-6)


def backward(
    network: StylizerNetwork,
    judge: Discriminator,
    batch: StyleBatch,
    sampled: SampledImage,
    recipe: StylizeRecipe,
    refining: bool,
) -> dict[str, Tensor]:
    """Leave the gradients of all losses in the parameters; returns figures for the log.

    Stage 1 has the L1 loss alone. Stage 2 works on its detached picture; its losses reach stage 2 only. The
    discriminator's own loss reaches the discriminator only.
    """
    palette = Palette.of(batch.style)
    structure = structure_of(batch.view)
    common = batch.common.float()
    weight = common + recipe.beyond_common * (1 - common)
    half = torch.autocast(batch.view.device.type, torch.bfloat16, enabled=batch.view.is_cuda)
    with half:
        mended = network.mend(structure, palette.normalise(sampled.colours), sampled.evidence)
    loss1 = weighted_l1(palette.colours(mended), batch.answer, weight)
    loss1.backward()  # type: ignore[no-untyped-call]
    figures = {"loss": loss1, "stage1": _clipped_l1(palette.colours(mended), batch.answer, common)}
    figures["sampled"] = weighted_l1(sampled.colours, batch.answer, common)
    if refining:
        figures |= _refine(network, judge, batch, recipe, palette, structure, mended.detach(), weight, half)
    return {key: value.detach() for key, value in figures.items()}


def _refine(
    network: StylizerNetwork,
    judge: Discriminator,
    batch: StyleBatch,
    recipe: StylizeRecipe,
    palette: Palette,
    structure: Tensor,
    mended: Tensor,
    weight: Tensor,
    half: torch.autocast,
) -> dict[str, Tensor]:
    answer = palette.normalise(batch.answer)
    with half, _frozen(judge):
        refined = network.refine(mended)
        made, real = judge(refined, structure), judge(answer, structure)
        l1 = weighted_l1(palette.colours(refined), batch.answer, weight)
        features, fool = feature_loss(real, made), fool_loss(made)
        loss2 = recipe.l1 * l1 + recipe.features * features + recipe.fool * fool
    loss2.backward()  # type: ignore[no-untyped-call]
    with half:
        verdict = judge_loss(judge(answer, structure), judge(refined.detach(), structure))
    verdict.backward()  # type: ignore[no-untyped-call]
    stage2 = _clipped_l1(palette.colours(refined), batch.answer, batch.common.float())
    return {"stage2": stage2, "features": features, "fool": fool, "judge": verdict}


def _clipped_l1(colours: Tensor, answer: Tensor, common: Tensor) -> Tensor:
    """The L1 that is reported: of colours in [0, 1], on the common region."""
    return weighted_l1(colours.detach().clamp(0, 1), answer, common)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Gradients pass through `module` but do not stay in it."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
