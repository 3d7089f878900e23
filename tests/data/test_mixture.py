"""Mixtures: how many pairs of each source, wrong pairs, and batches put together."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from coam.data.mixture import Ingredient, Mixture, make_wrong, portions
from coam.data.photometric import PhotometricConfig
from coam.data.sample import PairBatch, concatenate


class Marked:
    """A source whose pictures all have one value, with points that are all valid."""

    recordable = True

    def __init__(self, value: float, light: float | None = None) -> None:
        self.value, self.light = value, light

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        number = torch.arange(batch_size).view(-1, 1, 1, 1) / 100
        image = torch.full((batch_size, 3, size, size), self.value) + number
        position = torch.rand(batch_size, points, 2, generator=generator) * size
        yes = torch.ones(batch_size, points, dtype=torch.bool)
        return PairBatch(
            image0=image,
            image1=image,
            points0=position,
            points1=position + number[..., 0],
            valid=yes,
            unmatched0=~yes,
            unmatched1=~yes,
            tolerance=torch.zeros(batch_size),
            light=None if self.light is None else torch.full((batch_size,), self.light),
        )


@pytest.mark.parametrize(
    ("shares", "batch", "expected"),
    [
        ([1, 1], 4, [2, 2]),
        ([0.7, 0.3], 4, [3, 1]),
        ([0.5, 0.25, 0.25], 10, [5, 3, 2]),
        ([1, 1, 1], 1, [1, 0, 0]),
        ([3.0], 7, [7]),
        ([0.0, 2.0], 5, [0, 5]),
    ],
)
def test_portions(shares: list[float], batch: int, expected: list[int]) -> None:
    assert portions(shares, batch) == expected


def test_every_source_gives_its_portion() -> None:
    mixture = Mixture([Ingredient(Marked(0.2), 0.75, light=0.0), Ingredient(Marked(0.6, light=0.0), 0.25)])
    batch = mixture.sample(8, 32, 5, torch.Generator().manual_seed(0))
    values = batch.image0.mean(dim=(1, 2, 3))
    assert values.tolist() == pytest.approx([0.2, 0.21, 0.22, 0.23, 0.24, 0.25, 0.6, 0.61])
    assert batch.points0.shape == (8, 5, 2)


def test_light_of_the_pair_comes_before_light_of_the_ingredient() -> None:
    given = Mixture([Ingredient(Marked(0.5, light=0.0), 1.0, light=1.0)])
    assert given.sample(6, 32, 3, torch.Generator().manual_seed(0)).image0.std(dim=(1, 2, 3)).max() < 1e-6
    decided = Mixture([Ingredient(Marked(0.5), 1.0, light=1.0)])
    assert decided.sample(6, 32, 3, torch.Generator().manual_seed(0)).image0.std(dim=(1, 2, 3)).max() > 1e-3


def test_the_mixture_changes_light_as_its_configuration_says() -> None:
    never = dict.fromkeys(PhotometricConfig.__dataclass_fields__, 0.0)
    source = [Ingredient(Marked(0.3), 1.0)]
    still = Mixture(source, photometric=PhotometricConfig(**never))
    batch = still.sample(4, 32, 5, torch.Generator().manual_seed(0))
    assert batch.image0.mean(dim=(1, 2, 3)).tolist() == pytest.approx([0.3, 0.31, 0.32, 0.33])
    hazy = Mixture(source, photometric=PhotometricConfig(**{**never, "haze": 1.1}))
    assert (hazy.sample(4, 32, 5, torch.Generator().manual_seed(0)).image0.amax(dim=(1, 2, 3)) > 0.35).all()


def test_wrong_pairs_have_no_valid_points() -> None:
    batch = Marked(0.2).sample(5, 8, 4, torch.Generator().manual_seed(0))
    wrong = make_wrong(batch, 3)
    assert wrong.valid.all(dim=1).tolist() == [True, True, False, False, False]
    assert not wrong.valid[2:].any()
    assert wrong.unmatched0[2:].all()
    assert wrong.unmatched1[2:].all()
    assert not wrong.unmatched0[:2].any()
    # Pairs 2, 3, 4 got the second pictures and points of 4, 2, 3.
    assert torch.equal(wrong.image1[2:], batch.image1[[4, 2, 3]])
    assert torch.equal(wrong.points1[2:], batch.points1[[4, 2, 3]])
    assert torch.equal(wrong.image0, batch.image0)


def test_a_point_of_unknown_fate_stays_unknown_in_a_wrong_pair() -> None:
    batch = Marked(0.2).sample(2, 8, 4, torch.Generator().manual_seed(0))
    valid = batch.valid.clone()
    valid[0, 1] = False  # neither valid nor certainly unmatched: points1 may be anything
    wrong = make_wrong(replace(batch, valid=valid), 2)
    assert wrong.unmatched1.tolist() == [[True] * 4, [True, False, True, True]]


def test_the_mixture_makes_as_many_wrong_pairs_as_asked() -> None:
    mixture = Mixture(
        [Ingredient(Marked(0.1), 0.5, light=0.0), Ingredient(Marked(0.5), 0.5, light=0.0, wrong=True)], 0.25
    )
    batch = mixture.sample(16, 32, 3, torch.Generator().manual_seed(0))
    assert (~batch.valid.any(dim=1)).nonzero().flatten().tolist() == [12, 13, 14, 15]


def test_one_seed_one_batch() -> None:
    mixture = Mixture([Ingredient(Marked(0.5), 1.0)])
    first, second = (mixture.sample(2, 32, 3, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first.image1, second.image1)


def test_concatenate_with_and_without_light() -> None:
    plain = Marked(0.2).sample(2, 8, 4, torch.Generator().manual_seed(0))
    both = concatenate([plain, plain])
    assert both.light is None
    for name in (f.name for f in fields(PairBatch) if f.name != "light"):
        assert torch.equal(getattr(both, name)[2:], getattr(plain, name))
    lit = replace(plain, light=torch.tensor([0.1, 0.2]))
    joined = concatenate([lit, lit]).light
    assert joined is not None
    assert joined.tolist() == pytest.approx([0.1, 0.2, 0.1, 0.2])
    with pytest.raises(ValueError, match="light"):
        concatenate([plain, lit])
