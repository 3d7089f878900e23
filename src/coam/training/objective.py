"""Objectives: from a batch of pairs to one number to minimise, and a few to watch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor, nn

from coam.data.mixture import Mixture
from coam.data.sample import AnyBatch, Batch, PairBatch
from coam.losses import correspondence as corr
from coam.losses import distinctiveness as dist
from coam.models.network import DescriptorNetwork
from coam.models.outputs import DenseDescriptors
from coam.training.config import OBJECTIVES, LossSpec, Recipe
from coam.training.sources import CORRESPONDENCES, SourceKinds, build_mixture

EXCLUDED_PIXELS = 4.0  # a negative nearer than this to the truth is none
RIGHT_CELLS = 1.5  # a best cell this near to the truth counts as right
FINE_TOLERANCE = 1.5  # pixels: where the truth is less sure than this, the fine stage learns nothing
COARSE_STRIDE = 16  # pixels between the positions at which the images meet


class Objective(nn.Module, Generic[AnyBatch], ABC):
    """A network with its losses; both images of every pair look for their points in the other."""

    batch_type: ClassVar[type[Batch]]  # what `forward` takes the fields of
    sources: ClassVar[SourceKinds]  # what gives such batches

    def __init__(self, model: nn.Module, spec: LossSpec) -> None:
        super().__init__()
        self.model = model
        self.spec = spec
        self.compiled: Callable[..., tuple[DenseDescriptors, DenseDescriptors]] | None = None

    def use_compiled(self, yes: bool) -> None:
        """Run the network through torch.compile from now on, or not."""
        self.compiled = torch.compile(self.model, dynamic=False) if yes else None

    def forward(self, **fields: Tensor) -> dict[str, Tensor]:
        """Fields of a batch -> losses and figures, all scalars; "loss" is the one to minimise."""
        batch: Any = self.batch_type(**fields)
        # Mixed precision is ours and not Fabric's, which would round the points to bfloat16 as well.
        with torch.autocast(batch.image0.device.type, torch.bfloat16, enabled=batch.image0.is_cuda):
            network = self.model if self.compiled is None else self.compiled
            dense0, dense1 = network(batch.image0, batch.image1)
        logit_scale = self.model.logit_scale
        assert isinstance(logit_scale, Tensor)
        forth = self.one_way(dense0, dense1, batch, logit_scale)
        back = self.one_way(dense1, dense0, batch.swapped(), logit_scale)
        figures = {key: (forth[key] + back[key]) / 2 for key in forth}
        return {"loss": self.total(figures), **figures, "logit_scale": logit_scale.detach().float()}

    @abstractmethod
    def one_way(
        self, dense: DenseDescriptors, other: DenseDescriptors, batch: AnyBatch, logit_scale: Tensor
    ) -> dict[str, Tensor]:
        """Losses and figures of looking for the points of the first image in the second."""

    @abstractmethod
    def total(self, figures: dict[str, Tensor]) -> Tensor:
        """The loss: a weighted sum of figures."""


def objective_class(recipe: Recipe) -> type[Objective[Any]]:
    """The objective that has the recipe's loss."""
    found: type[Objective[Any]] = resolve_name(OBJECTIVES[recipe.loss.kind])
    return found


def build_objective(model: DescriptorNetwork, recipe: Recipe) -> Objective[Any]:
    """A network with the recipe's losses."""
    return objective_class(recipe)(model, recipe.loss)


def build_source(recipe: Recipe, root: Path, device: torch.device) -> Mixture[Any]:
    """All sources of a recipe, giving the batches that its loss needs; paths are relative to `root`."""
    return build_mixture(recipe, root, device, objective_class(recipe).sources)


class CorrespondenceObjective(Objective[PairBatch]):
    """The losses of pairs whose correspondences are known."""

    batch_type = PairBatch
    sources = CORRESPONDENCES

    def total(self, figures: dict[str, Tensor]) -> Tensor:
        """The loss: a weighted sum of figures."""
        spec = self.spec
        return (
            figures["descriptor"]
            + spec.coarse * figures["coarse"]
            + spec.fine * figures["fine"]
            + spec.score * figures["score"]
        )

    def one_way(
        self, dense: DenseDescriptors, other: DenseDescriptors, batch: PairBatch, logit_scale: Tensor
    ) -> dict[str, Tensor]:
        """Losses and figures of looking for the points of the first image in the second."""
        spec, few, tolerance = self.spec, slice(None, self.spec.points), batch.tolerance
        points, truth = batch.points0[:, few], batch.points1[:, few]
        valid, unmatched = batch.valid[:, few], batch.unmatched0[:, few]
        query = nn.functional.normalize(corr.sample(dense.descriptors, points, dense.stride), dim=-1)
        logits = corr.grid_logits(query, other.descriptors, logit_scale)
        cells = (truth + 0.5) / other.stride - 0.5
        with torch.no_grad():
            radius = (RIGHT_CELLS + tolerance / other.stride).unsqueeze(1)
            correct = dist.correctness_target(logits, cells, other.descriptors.shape[-1], radius) * valid
        if spec.kind in ("nce", "nce_literal", "hinge") or spec.score_target == "confusions":
            negative, allowed = self._negatives(query, other, truth)
        if spec.kind == "grid":
            descriptor = _choice(logits, other.descriptors, other.stride, truth, valid, tolerance)
        elif spec.kind == "dual_softmax":
            descriptor = corr.dual_softmax(query, _partner(other, truth), valid, logit_scale)
        else:
            positive = (query * _partner(other, truth)).sum(dim=-1)
            if spec.kind == "nce":
                descriptor = corr.info_nce(positive, negative, allowed, valid, logit_scale)
            elif spec.kind == "nce_literal":
                descriptor = corr.info_nce_literal(positive, negative, allowed, valid, logit_scale)
            else:
                descriptor = corr.hinge(
                    positive, negative, allowed, valid, spec.margin, spec.hardest, spec.constant_weight
                )
        score = corr.sample(dense.score.float(), points, dense.stride)[..., 0]
        if spec.score_target == "correct":
            score_loss = dist.cross_entropy(score, correct, valid | unmatched)
        else:
            target = dist.confusion_target(negative.detach(), allowed, spec.margin)
            score_loss = dist.absolute_error(score, target, valid)
        fine, error = self._fine(
            dense, other, points, truth, valid & (tolerance < FINE_TOLERANCE).unsqueeze(1)
        )
        coarse = torch.zeros((), device=points.device)
        if dense.coarse is not None and other.coarse is not None:
            query = nn.functional.normalize(corr.sample(dense.coarse, points, COARSE_STRIDE), dim=-1)
            logits = corr.grid_logits(query, other.coarse, logit_scale)
            coarse = _choice(logits, other.coarse, COARSE_STRIDE, truth, valid, tolerance)
        return {
            "descriptor": descriptor,
            "coarse": coarse,
            "fine": fine,
            "score": score_loss,
            "accuracy": corr.masked_mean(correct, valid),
            "error": error,
            "valid": valid.float().mean(),
        }

    def _negatives(self, query: Tensor, other: DenseDescriptors, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities (B, L, N) with random positions of the other image; which are far from the truth."""
        batch, height, width = len(query), other.descriptors.shape[-2], other.descriptors.shape[-1]
        if self.spec.negatives_of == "point":
            shape = (batch, query.shape[1], self.spec.negatives)
            own = torch.randint(height * width, shape, device=query.device)
            place = torch.stack([own % width, torch.div(own, width, rounding_mode="floor")], dim=-1)
            place = (place.float() + 0.5) * other.stride - 0.5
            far = (place - truth.unsqueeze(2)).norm(dim=-1) > EXCLUDED_PIXELS
            return corr.own_similarities(query, other.descriptors, own), far
        chosen = torch.randint(height * width, (batch, self.spec.negatives), device=query.device)
        features = other.descriptors.flatten(2).gather(
            2, chosen.unsqueeze(1).expand(-1, other.descriptors.shape[1], -1)
        )
        position = torch.stack([chosen % width, torch.div(chosen, width, rounding_mode="floor")], dim=-1)
        position = (position.float() + 0.5) * other.stride - 0.5
        return torch.bmm(query, features), torch.cdist(truth, position) > EXCLUDED_PIXELS

    def _fine(
        self, dense: DenseDescriptors, other: DenseDescriptors, points: Tensor, truth: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        if dense.fine is None or other.fine is None:
            zero = torch.zeros((), device=points.device)
            return zero, zero
        few = slice(None, self.spec.fine_points)
        points, truth, valid = points[:, few], truth[:, few], valid[:, few]
        # The coarse stage gives the right cell or one next to it; train on both.
        jitter = torch.randint(-1, 2, truth.shape, device=truth.device) * (torch.rand_like(truth) < 0.3)
        cell = ((truth + 0.5) / other.stride - 0.5).round() + jitter
        centre = (cell + 0.5) * other.stride - 0.5
        query = corr.sample(dense.fine, points, dense.fine_stride)
        return corr.fine_loss(
            query, other.fine, centre, truth, valid, other.fine_stride, self.spec.fine_radius
        )


def _partner(other: DenseDescriptors, truth: Tensor) -> Tensor:
    """Unit descriptors (B, L, D) of the true partners (B, L, 2)."""
    return nn.functional.normalize(corr.sample(other.descriptors, truth, other.stride), dim=-1)


def _choice(
    logits: Tensor, feature_map: Tensor, stride: float, truth: Tensor, valid: Tensor, tolerance: Tensor
) -> Tensor:
    """Cross entropy of choosing the true partner (B, L, 2) among all cells of a map (B, D, H, W)."""
    rows, columns = feature_map.shape[-2:]
    spread = (corr.BILINEAR_SPREAD**2 + (tolerance / stride) ** 2).sqrt()
    index, weight = corr.cell_targets(truth, columns, rows, stride, spread)
    return corr.grid_cross_entropy(logits, index, weight, valid)
