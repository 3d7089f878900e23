"""The objective for pairs of which only the cameras are known: CAPSNet's epipolar and cycle losses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coam.capsnet import losses as epi
from coam.capsnet.pairs import PosedBatch
from coam.errors import ConfigError
from coam.losses.correspondence import masked_mean, sample
from coam.models.outputs import DenseDescriptors
from coam.training.config import LossSpec
from coam.training.objective import COARSE_STRIDE, Objective
from coam.training.sources import SourceKinds

RIGHT_PIXELS = 4.0  # an answer this near to its epipolar line counts as right in the log


@dataclass(frozen=True)
class Answer:
    """Where points (B, L, 2) are found in the other image, and where these places lead back to."""

    found: Tensor  # (B, L, 2)
    spread: Tensor  # (B, L)
    returned: Tensor  # (B, L, 2)
    returned_spread: Tensor  # (B, L)


class EpipolarObjective(Objective[PosedBatch]):
    """The losses of pairs whose cameras are known."""

    batch_type = PosedBatch
    sources = SourceKinds(
        rendered="coam.capsnet.pairs:WorldPoses",
        measured={
            "tracks": "coam.capsnet.photos:posed_tracks",
            "rgbd": "coam.capsnet.photos:posed_rgbd",
            "colmap": "coam.capsnet.photos:posed_colmap",
            "pairs": "coam.capsnet.photos:posed_list",
            "depth": "coam.capsnet.photos:MegaDepthPoses",
        },
    )

    def __init__(self, model: nn.Module, spec: LossSpec) -> None:
        if not hasattr(model, "coarse_logit_scale"):
            raise ConfigError("the loss 'epipolar' trains the architecture capsnet only")
        super().__init__(model, spec)

    def total(self, figures: dict[str, Tensor]) -> Tensor:
        """The loss: a weighted sum of figures."""
        spec = self.spec
        loss = spec.coarse * figures["epipolar_coarse"] + spec.fine * figures["epipolar_fine"]
        return loss + spec.cycle * (figures["cycle_coarse"] + figures["cycle_fine"])

    def one_way(
        self, dense: DenseDescriptors, other: DenseDescriptors, batch: PosedBatch, logit_scale: Tensor
    ) -> dict[str, Tensor]:
        """Losses and figures of looking for the queries of the first image in the second, and back."""
        spec, side = self.spec, float(max(dense.size))
        points, valid = batch.points0, batch.valid0
        coarse, guess = self._coarse(dense, other, points)
        fine = self._fine(dense, other, points, guess, logit_scale)
        off_coarse = epi.epipolar_distance(points, coarse.found, batch.fundamental)
        off_fine = epi.epipolar_distance(points, fine.found, batch.fundamental)
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
        factor = self.model.coarse_logit_scale
        assert isinstance(factor, Tensor)
        logits = epi.similarities(_at(dense.coarse, points, COARSE_STRIDE), other.coarse, factor)
        found, spread = epi.expected_position(logits, COARSE_STRIDE)
        back = epi.similarities(_at(other.coarse, found, COARSE_STRIDE), dense.coarse, factor)
        returned, returned_spread = epi.expected_position(back, COARSE_STRIDE)
        guess = epi.best_position(logits.detach(), COARSE_STRIDE)
        return Answer(found, spread, returned, returned_spread), guess

    def _fine(
        self,
        dense: DenseDescriptors,
        other: DenseDescriptors,
        points: Tensor,
        guess: Tensor,
        logit_scale: Tensor,
    ) -> Answer:
        """The answer of the fine maps in a window around `guess`; the way back looks around the start."""
        own, others = (d.descriptors if d.fine is None else d.fine for d in (dense, other))
        reach = self.spec.window * max(dense.size) / 2
        logits = epi.similarities(_at(own, points, dense.stride), others, logit_scale)
        logits = epi.keep_window(logits, guess, other.stride, reach)
        found, spread = epi.expected_position(logits, other.stride)
        back = epi.similarities(_at(others, found, other.stride), own, logit_scale)
        back = epi.keep_window(back, points, dense.stride, reach)
        return Answer(found, spread, *epi.expected_position(back, dense.stride))


def _at(feature_map: Tensor, points: Tensor, stride: int) -> Tensor:
    """Unit descriptors (B, L, D) of a map (B, D, H, W) at pixels (B, L, 2)."""
    return nn.functional.normalize(sample(feature_map, points, stride), dim=-1)


def _cycle(points: Tensor, answer: Answer, mask: Tensor, side: float) -> Tensor:
    return epi.cycle_loss(points, answer.returned, answer.spread * answer.returned_spread, mask, side)
