"""From a batch of pairs to one number to minimise, and a few to watch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coam.losses import correspondence as corr
from coam.losses import distinctiveness as dist
from coam.losses.fine import fine_loss
from coam.models.outputs import DenseDescriptors
from coam.training.objective_base import ModelWithLosses

BILINEAR_SPREAD = 0.45  # cells: a Gaussian this wide weighs neighbours about as bilinear interpolation does
EXCLUDED_PIXELS = 4.0  # a negative nearer than this to the truth is none


class Objective(ModelWithLosses):
    """The losses of pairs whose correspondences are known."""

    def forward(
        self,
        image0: Tensor,
        image1: Tensor,
        points0: Tensor,
        points1: Tensor,
        valid: Tensor,
        unmatched0: Tensor,
        unmatched1: Tensor,
        tolerance: Tensor,
        light: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Fields of a `PairBatch` -> losses and figures, all scalars; "loss" is the one to minimise."""
        dense0, dense1 = self.describe(image0, image1)
        temperature = self.temperature_of()
        forth = self._one_way(dense0, dense1, points0, points1, valid, unmatched0, tolerance, temperature)
        back = self._one_way(dense1, dense0, points1, points0, valid, unmatched1, tolerance, temperature)
        result = {key: (forth[key] + back[key]) / 2 for key in forth}
        spec = self.spec
        result["loss"] = (
            result["descriptor"]
            + spec.coarse * result["coarse"]
            + spec.fine * result["fine"]
            + spec.score * result["score"]
        )
        result["temperature"] = temperature.detach().float()
        return result

    def _one_way(
        self,
        dense: DenseDescriptors,
        other: DenseDescriptors,
        points: Tensor,
        truth: Tensor,
        valid: Tensor,
        unmatched: Tensor,
        tolerance: Tensor,
        temperature: Tensor,
    ) -> dict[str, Tensor]:
        """Points of one image look for their partners in the other."""
        few = slice(None, self.spec.points)
        points, truth, valid, unmatched = points[:, few], truth[:, few], valid[:, few], unmatched[:, few]
        query = nn.functional.normalize(corr.sample(dense.descriptors, points, dense.stride), dim=-1)
        logits = corr.grid_logits(query, other.descriptors, temperature)
        columns = other.descriptors.shape[-1]
        cells = (truth + 0.5) / other.stride - 0.5
        with torch.no_grad():
            radius = (1.5 + tolerance / other.stride).unsqueeze(1)
            correct = dist.correctness_target(logits, cells, columns, radius) * valid
        spec = self.spec
        if spec.kind in ("nce", "hinge") or spec.score_target == "confusions":
            negative, allowed = self._negatives(query, other, truth)
        if spec.kind in ("nce", "hinge"):
            descriptor = self._contrast(query, other, truth, valid, temperature, negative, allowed)
        else:
            descriptor = self._choice(query, logits, other, truth, valid, tolerance, temperature)
        score = corr.sample(dense.score.float(), points, dense.stride)[..., 0]
        if spec.score_target == "correct":
            score_loss = dist.cross_entropy(score, correct, valid | unmatched)
        else:
            target = dist.confusion_target(negative.detach(), allowed, spec.margin)
            score_loss = dist.absolute_error(score, target, valid)
        fine, error = self._fine(dense, other, points, truth, valid & (tolerance < 1.5).unsqueeze(1))
        return {
            "descriptor": descriptor,
            "coarse": self._coarse(dense, other, points, truth, valid, tolerance, temperature),
            "fine": fine,
            "score": score_loss,
            "accuracy": corr.masked_mean(correct, valid),
            "error": error,
            "valid": valid.float().mean(),
        }

    def _choice(
        self,
        query: Tensor,
        logits: Tensor,
        other: DenseDescriptors,
        truth: Tensor,
        valid: Tensor,
        tolerance: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        """Loss of choosing the true partner among all cells, or among the partners of all points."""
        rows, columns = other.descriptors.shape[-2:]
        if self.spec.kind == "grid":
            spread = self._spread(tolerance, other.stride)
            index, weight = corr.cell_targets(truth, columns, rows, other.stride, spread)
            return corr.grid_cross_entropy(logits, index, weight, valid)
        return corr.dual_softmax(query, self._answer(other, truth), valid, temperature)

    def _contrast(
        self,
        query: Tensor,
        other: DenseDescriptors,
        truth: Tensor,
        valid: Tensor,
        temperature: Tensor,
        negative: Tensor,
        allowed: Tensor,
    ) -> Tensor:
        """Loss of telling the true partner from random positions (the similarities `negative`)."""
        spec = self.spec
        positive = (query * self._answer(other, truth)).sum(dim=-1)
        if spec.kind == "nce":
            return corr.info_nce(positive, negative, allowed, valid, temperature)
        return corr.hinge(positive, negative, allowed, valid, spec.margin, spec.hardest)

    @staticmethod
    def _answer(other: DenseDescriptors, truth: Tensor) -> Tensor:
        return nn.functional.normalize(corr.sample(other.descriptors, truth, other.stride), dim=-1)

    def _negatives(self, query: Tensor, other: DenseDescriptors, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities (B, L, N) with random positions of the other image; which are far from the truth."""
        batch, height, width = len(query), other.descriptors.shape[-2], other.descriptors.shape[-1]
        chosen = torch.randint(height * width, (batch, self.spec.negatives), device=query.device)
        features = other.descriptors.flatten(2).gather(
            2, chosen.unsqueeze(1).expand(-1, other.descriptors.shape[1], -1)
        )
        position = torch.stack([chosen % width, torch.div(chosen, width, rounding_mode="floor")], dim=-1)
        position = (position.float() + 0.5) * other.stride - 0.5
        return torch.bmm(query, features), torch.cdist(truth, position) > EXCLUDED_PIXELS

    def _coarse(
        self,
        dense: DenseDescriptors,
        other: DenseDescriptors,
        points: Tensor,
        truth: Tensor,
        valid: Tensor,
        tolerance: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        if dense.coarse is None or other.coarse is None:
            return torch.zeros((), device=points.device)
        query = nn.functional.normalize(corr.sample(dense.coarse, points, 16), dim=-1)
        logits = corr.grid_logits(query, other.coarse, temperature)
        rows, columns = other.coarse.shape[-2:]
        index, weight = corr.cell_targets(truth, columns, rows, 16, self._spread(tolerance, 16))
        return corr.grid_cross_entropy(logits, index, weight, valid)

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
        return fine_loss(query, other.fine, centre, truth, valid, other.fine_stride, self.spec.fine_radius)

    @staticmethod
    def _spread(tolerance: Tensor, stride: float) -> Tensor:
        return (BILINEAR_SPREAD**2 + (tolerance / stride) ** 2).sqrt()
