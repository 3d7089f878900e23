"""Objectives: a new loss is one class and one line, and both images of a pair count alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coam.data.sample import PairBatch
from coam.models.outputs import DenseDescriptors
from coam.training import config
from coam.training.config import LossSpec
from coam.training.loop import make_fabric
from coam.training.objective import CorrespondenceObjective, Objective, build_source, objective_class
from coam.training.run import train
from coam.training.sources import CORRESPONDENCES
from support import tiny


class Nearest(Objective[PairBatch]):
    """A toy loss: similarity of the mean descriptors."""

    batch_type = PairBatch
    sources = CORRESPONDENCES

    def one_way(
        self, dense: DenseDescriptors, other: DenseDescriptors, batch: PairBatch, logit_scale: Tensor
    ) -> dict[str, Tensor]:
        apart = 1 - (dense.descriptors.mean(dim=(2, 3)) * other.descriptors.mean(dim=(2, 3))).sum(dim=1)
        return {"apart": apart.mean(), "valid": batch.valid.float().mean()}

    def total(self, figures: dict[str, Tensor]) -> Tensor:
        return figures["apart"]


def test_a_new_loss_is_one_class_and_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(config.OBJECTIVES, "nearest", f"{__name__}:Nearest")
    recipe = replace(tiny.with_steps(1), loss=LossSpec(kind="nearest"))
    assert objective_class(recipe) is Nearest
    lines: list[dict[str, float]] = []
    source = build_source(recipe, data, torch.device("cpu"))
    train(recipe, source, tiny.start(), tmp_path, make_fabric("cpu"), report=lines.append)
    assert lines[0]["loss"] == lines[0]["apart"]
    assert lines[0]["gradient"] > 0


def test_a_swapped_batch_has_the_same_loss(data: Path) -> None:
    batch = tiny.source(data).sample(2, 64, 64, torch.Generator().manual_seed(1))
    objective = CorrespondenceObjective(tiny.start().eval(), LossSpec(points=64, fine=0.0))
    there, back = (objective(**given.tensors()) for given in (batch, batch.swapped()))
    torch.testing.assert_close(there["loss"], back["loss"])
    assert batch.swapped().swapped().tensors().keys() == batch.tensors().keys()
    for name, value in batch.swapped().swapped().tensors().items():
        assert torch.equal(value, batch.tensors()[name])


@pytest.mark.parametrize("negatives_of", ["pair", "point"])
def test_a_position_within_four_pixels_of_the_truth_is_no_negative(negatives_of: str) -> None:
    torch.manual_seed(0)
    spec = LossSpec(kind="nce", negatives=4000, negatives_of=negatives_of)
    objective = CorrespondenceObjective(tiny.start(), spec)
    maps = torch.nn.functional.normalize(torch.randn(1, 8, 16, 16), dim=1)
    other = DenseDescriptors(maps, torch.ones(1, 1, 16, 16), 4, (64, 64))
    truth = torch.tensor([[[25.5, 29.5]]])  # the centre of cell (6, 7) at stride 4
    similarity, allowed = objective._negatives(torch.randn(1, 1, 8), other, truth)
    assert similarity.shape == allowed.shape == (1, 1, 4000)
    # Of 256 cells the own one and its four neighbours at exactly 4 pixels are excluded: 5 / 256 of the draws.
    assert (~allowed).float().mean().item() == pytest.approx(5 / 256, abs=0.008)


@pytest.mark.parametrize("kind", ["hinge", "nce", "nce_literal"])
def test_the_papers_losses_learn_with_own_negatives(kind: str, data: Path) -> None:
    batch = tiny.source(data).sample(2, 64, 64, torch.Generator().manual_seed(1))
    spec = LossSpec(kind=kind, score_target="confusions", points=64, negatives=32, negatives_of="point")
    objective = CorrespondenceObjective(tiny.start(), spec)
    figures = objective(**batch.tensors())
    figures["descriptor"].backward()
    gradients = [p.grad.abs().sum() for p in objective.parameters() if p.grad is not None]
    assert torch.isfinite(figures["loss"])
    assert sum(gradients) > 0
