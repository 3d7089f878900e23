"""What the stylizer is trained to do: losses of both stages and of the discriminator, for one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from coam.models.outputs import DenseDescriptors
from coam.models.registry import DescriptorModel
from coam.stylization.colours import Palette, structure_of
from coam.stylization.discriminator import Discriminator, feature_loss, fool_loss, judge_loss
from coam.stylization.network import StylizerNetwork
from coam.stylization.pairs import StyleBatch
from coam.stylization.recipe import StylizeRecipe
from coam.stylization.sampled import SampledImage, find_flow, sample_by_flow


@torch.no_grad()
def sample_batch(
    matcher: DescriptorModel, batch: StyleBatch, noise: float, generator: torch.Generator
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
    flow = find_flow(dense0, dense1, float(matcher.temperature))
    return sample_by_flow(batch.style, flow, (batch.view.shape[-2], batch.view.shape[-1]))


def _noisy(dense: DenseDescriptors, deviation: Tensor, generator: torch.Generator) -> DenseDescriptors:
    noise = torch.randn(dense.descriptors.shape, generator=generator, device=deviation.device)
    noisy = nn.functional.normalize(dense.descriptors.float() + noise * deviation, dim=1)
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
