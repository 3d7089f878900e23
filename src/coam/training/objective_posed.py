"""The objective for pairs of which only the cameras are known: CAPSNet's epipolar and cycle losses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coam.errors import ConfigError
from coam.losses import epipolar as epi
from coam.losses.correspondence import masked_mean, sample
from coam.models.outputs import DenseDescriptors
from coam.training.config import LossSpec
from coam.training.objective_base import ModelWithLosses

COARSE_STRIDE = 16
RIGHT_PIXELS = 4.0  # an answer this near to its epipolar line counts as right in the log


@dataclass(frozen=True)
class Answer:
    """Where points (B, L, 2) are found in the other image, and where these places lead back to."""

    found: Tensor  # (B, L, 2)
    spread: Tensor  # (B, L)
    returned: Tensor  # (B, L, 2)
    returned_spread: Tensor  # (B, L)


class EpipolarObjective(ModelWithLosses):
    """The losses of pairs whose cameras are known."""

    def __init__(self, model: nn.Module, spec: LossSpec) -> None:
        if not hasattr(model, "coarse_temperature"):
            raise ConfigError("the loss 'epipolar' trains the architecture capsnet only")
        super().__init__(model, spec)

    def forward(
        self,
        image0: Tensor,
        image1: Tensor,
        points0: Tensor,
        points1: Tensor,
        valid0: Tensor,
        valid1: Tensor,
        fundamental: Tensor,
        light: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Fields of a `PosedBatch` -> losses and figures, all scalars; "loss" is the one to minimise."""
        dense0, dense1 = self.describe(image0, image1)
        forth = self._one_way(dense0, dense1, points0, valid0, fundamental)
        back = self._one_way(dense1, dense0, points1, valid1, fundamental.transpose(1, 2))
        result = {key: (forth[key] + back[key]) / 2 for key in forth}
        spec = self.spec
        loss = spec.coarse * result["epipolar_coarse"] + spec.fine * result["epipolar_fine"]
        loss = loss + spec.cycle * (result["cycle_coarse"] + result["cycle_fine"])
        return {"loss": loss, **result, "temperature": self.temperature_of().detach().float()}

    def _one_way(
        self,
        dense: DenseDescriptors,
        other: DenseDescriptors,
        points: Tensor,
        valid: Tensor,
        fundamental: Tensor,
    ) -> dict[str, Tensor]:
        """Points of one image look for their partners in the other, and from there back."""
        spec, side = self.spec, float(max(dense.size))
        coarse, guess = self._coarse(dense, other, points)
        fine = self._fine(dense, other, points, guess)
        off_coarse = epi.epipolar_distance(points, coarse.found, fundamental)
        off_fine = epi.epipolar_distance(points, fine.found, fundamental)
        # Elsewhere the fine stage, which looks in a window only, has no chance.
        in_window = valid & (off_coarse.detach() < spec.window * side)
        limit = spec.cycle_limit * side
        return {
            "epipolar_coarse": epi.epipolar_loss(off_coarse, coarse.spread, valid, side, spec.epipolar_limit),
            "epipolar_fine": epi.epipolar_loss(off_fine, fine.spread, in_window, side, spec.epipolar_limit),
            "cycle_coarse": _cycle(points, coarse, valid & (off_coarse.detach() < limit), side),
            "cycle_fine": _cycle(points, fine, valid & (off_fine.detach() < limit), side),
            "accuracy": epi.share_below(off_fine.detach(), RIGHT_PIXELS, valid),
            "error": masked_mean(off_fine.detach(), valid),
            "valid": valid.float().mean(),
        }

    def _coarse(
        self, dense: DenseDescriptors, other: DenseDescriptors, points: Tensor
    ) -> tuple[Answer, Tensor]:
        """The answer of the coarse maps, and the best cell (B, L, 2) around which the fine stage looks."""
        assert dense.coarse is not None
        assert other.coarse is not None
        factor = self.temperature_of("coarse_temperature")
        logits = epi.similarities(_at(dense.coarse, points, COARSE_STRIDE), other.coarse, factor)
        found, spread = epi.expected_position(logits, COARSE_STRIDE)
        back = epi.similarities(_at(other.coarse, found, COARSE_STRIDE), dense.coarse, factor)
        returned, returned_spread = epi.expected_position(back, COARSE_STRIDE)
        guess = epi.best_position(logits.detach(), COARSE_STRIDE)
        return Answer(found, spread, returned, returned_spread), guess

    def _fine(
        self, dense: DenseDescriptors, other: DenseDescriptors, points: Tensor, guess: Tensor
    ) -> Answer:
        """The answer of the fine maps in a window around `guess`; the way back looks around the start."""
        own, others = (d.descriptors if d.fine is None else d.fine for d in (dense, other))
        factor, reach = self.temperature_of(), self.spec.window * max(dense.size) / 2
        logits = epi.similarities(_at(own, points, dense.stride), others, factor)
        logits = epi.keep_window(logits, guess, other.stride, reach)
        found, spread = epi.expected_position(logits, other.stride)
        back = epi.similarities(_at(others, found, other.stride), own, factor)
        back = epi.keep_window(back, points, dense.stride, reach)
        return Answer(found, spread, *epi.expected_position(back, dense.stride))


def _at(feature_map: Tensor, points: Tensor, stride: int) -> Tensor:
    """Unit descriptors (B, L, D) of a map (B, D, H, W) at pixels (B, L, 2)."""
    return nn.functional.normalize(sample(feature_map, points, stride), dim=-1)


def _cycle(points: Tensor, answer: Answer, mask: Tensor, side: float) -> Tensor:
    return epi.cycle_loss(points, answer.returned, answer.spread * answer.returned_spread, mask, side)
