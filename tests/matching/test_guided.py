"""Guided search against the exact one: equal where all cells are candidates, and on real pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import coam
from coam import samples
from coam.matching.dense import DenseMatching, GuidedMatching, matching_for
from coam.matching.guided import (
    GuideOptions,
    _chunks,
    can_guide,
    candidates,
    guided_choices,
    guided_dual_softmax,
)
from coam.matching.mutual import dual_softmax_nearest
from coam.matching.settings import MatcherConfig
from coam.models.outputs import DenseDescriptors

EVERYTHING = GuideOptions(cells=10**6, reach=0)
SCALE = 20.0


def unit_maps(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=0)


def rows_of(feature_map: Tensor) -> Tensor:
    return feature_map.flatten(1).t().contiguous()


def one_hot_cells(rows: int, columns: int) -> Tensor:
    """Coarse descriptors (rows * columns, rows, columns) of which no two are alike."""
    return torch.eye(rows * columns).view(-1, rows, columns)


@pytest.mark.parametrize(("size0", "size1"), [((8, 8), (8, 8)), ((8, 16), (24, 8)), ((16, 24), (8, 40))])
def test_with_all_cells_it_is_the_exact_search(size0: tuple[int, int], size1: tuple[int, int]) -> None:
    maps = [unit_maps(16, *size, seed=seed) for seed, size in enumerate((size0, size1))]
    coarse = [unit_maps(8, size[0] // 4, size[1] // 4, seed=seed) for seed, size in enumerate((size0, size1))]
    guided = guided_dual_softmax(*maps, *coarse, SCALE, EVERYTHING)
    exact = dual_softmax_nearest(rows_of(maps[0]), rows_of(maps[1]), SCALE)
    assert guided.index0.tolist() == exact.index0.tolist()
    assert guided.index1.tolist() == exact.index1.tolist()
    assert torch.allclose(guided.similarity, exact.similarity, atol=1e-5)
    assert guided.probability is not None
    assert exact.probability is not None
    assert torch.allclose(guided.probability, exact.probability, rtol=1e-4)


def test_lists_of_candidates_are_filled_up_with_the_cell_after_the_last() -> None:
    near = torch.zeros(3, 5, dtype=torch.bool)
    near[0, [1, 4]] = near[2, 3] = True
    found = {}
    for blocks, cells in _chunks(near, entries=4):
        found |= dict(zip(blocks.tolist(), cells.tolist(), strict=True))
    assert found == {0: [1, 4], 2: [3, 5], 1: [5, 5]}


def test_candidates_by_hand() -> None:
    """Each cell of 4 x 6 is most like itself: a block's candidates are its cells and those around."""
    cells = one_hot_cells(4, 6)
    near, back = candidates(cells, cells, GuideOptions(cells=1, reach=1))
    assert torch.equal(near, back)
    corner, middle = near.view(2, 3, 4, 6)[0, 0], near.view(2, 3, 4, 6)[1, 1]
    expected_corner, expected_middle = torch.zeros(2, 4, 6, dtype=torch.bool)
    expected_corner[:3, :3] = True
    expected_middle[1:, 1:5] = True
    assert torch.equal(corner, expected_corner)
    assert torch.equal(middle, expected_middle)


def test_candidates_are_widened_in_maps_of_two_rows_too() -> None:
    """All cells of photo 0 are like the first of 2 x 4: it and its three neighbours are candidates."""
    others = one_hot_cells(2, 4)
    queries = torch.zeros(8, 4, 24)
    queries[0] = 1.0
    near, _ = candidates(queries, others, GuideOptions(cells=1, reach=1))
    fewest = near[near.sum(dim=1).argmin()]  # of a block that photo 1 names nothing in
    assert fewest.nonzero().flatten().tolist() == [0, 1, 4, 5]


def test_both_photos_name_candidates() -> None:
    """All of photo 0 likes the first cell of photo 1 best; photo 1's last cell likes photo 0's last one."""
    coarse0, coarse1 = torch.zeros(2, 5, 2, 4)
    coarse0[0] = 1.0
    coarse0[1, 1, 3] = 0.1
    coarse1[2] = 1.0
    coarse1[2, 0, 0] = 0.0
    coarse1[0, 0, 0] = 1.0
    coarse1[2, 1, 3] = 0.0
    coarse1[1, 1, 3] = 1.0
    near, back = candidates(coarse0, coarse1, GuideOptions(cells=1, reach=0))
    assert near[:, 0].all()  # named by photo 0
    assert near[1, 7]  # named by photo 1
    assert not near[0, 7]
    assert back[0].all()
    assert back[1, 7]


def test_candidates_do_not_depend_on_how_many_are_sought_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = unit_maps(8, 12, 6), unit_maps(8, 4, 10, seed=1)
    whole = candidates(*coarse, GuideOptions(cells=2, reach=1))
    monkeypatch.setattr("coam.matching.guided._CELLS_AT_ONCE", 1)
    for found, expected in zip(candidates(*coarse, GuideOptions(cells=2, reach=1)), whole, strict=True):
        assert torch.equal(found, expected)


def test_positions_that_are_in_no_match_have_a_choice_too() -> None:
    """With all cells as candidates it is the most similar position; without any likeness there is none."""
    maps = unit_maps(16, 8, 8), unit_maps(16, 8, 12, seed=1)
    maps[0][:, 0, 0] = 0
    coarse = unit_maps(8, 4, 4), unit_maps(8, 4, 6, seed=1)
    found = guided_choices(*maps, *coarse, SCALE, EVERYTHING)
    similarity = rows_of(maps[0]) @ rows_of(maps[1]).t()
    assert found.best0[0] == -1
    assert torch.equal(found.best0[1:], similarity.argmax(dim=1)[1:])
    assert torch.equal(found.best1, similarity.argmax(dim=0))
    assert torch.allclose(found.similarity0[1:], similarity.amax(dim=1)[1:], atol=1e-6)
    assert torch.allclose(found.similarity1, similarity.amax(dim=0), atol=1e-6)


def test_a_match_outside_the_candidates_is_not_found() -> None:
    fine = unit_maps(16, 16, 16)
    same = one_hot_cells(4, 4)
    inside = guided_dual_softmax(fine, fine, same, same, SCALE, GuideOptions(cells=1, reach=0))
    assert inside.index0.tolist() == inside.index1.tolist() == list(range(256))
    shifted = guided_dual_softmax(fine, fine, same, same.flip(2), SCALE, GuideOptions(cells=1, reach=0))
    # Blocks of 2 x 2 cells share candidates: photo 1's left half lies in blocks of photo 0's right half.
    assert not set(zip(shifted.index0.tolist(), shifted.index1.tolist(), strict=True)) & {
        (i, i) for i in range(256)
    }


def test_zero_vectors_are_never_chosen() -> None:
    first, second = unit_maps(16, 8, 8), unit_maps(16, 8, 8, seed=1)
    first[:, 2:5] = 0
    second[:, :, 6:] = 0
    coarse = unit_maps(8, 2, 2)
    found = guided_dual_softmax(first, second, coarse, coarse, SCALE, EVERYTHING)
    assert len(found) > 5
    assert not ((found.index0 // 8 >= 2) & (found.index0 // 8 < 5)).any()
    assert not (found.index1 % 8 >= 6).any()
    nothing = guided_dual_softmax(torch.zeros(16, 8, 8), second, coarse, coarse, SCALE)
    assert len(nothing) == 0


def test_softmax_sums_by_hand() -> None:
    """Two positions that differ: sums are over the four positions of one 2 x 2 block of cells."""
    fine = torch.zeros(2, 2, 2)
    fine[0, 0, 0] = fine[1, 1, 1] = 1.0
    coarse = one_hot_cells(2, 2)
    found = guided_dual_softmax(fine, fine, coarse, coarse, 3.0, GuideOptions(cells=1, reach=0))
    assert found.index0.tolist() == found.index1.tolist() == [0, 3]
    share = math.exp(3.0) / (math.exp(3.0) + 3.0)
    assert found.probability is not None
    assert found.probability.tolist() == pytest.approx([share**2] * 2, rel=1e-5)


def test_only_maps_that_divide_into_blocks_are_guided() -> None:
    def dense(height: int, width: int, coarse: Tensor | None) -> DenseDescriptors:
        score = torch.ones(1, 1, height, width)
        return DenseDescriptors(unit_maps(4, height, width)[None], score, 4, (4, 4), coarse=coarse)

    assert can_guide(dense(16, 24, torch.zeros(1, 4, 4, 6)))
    assert not can_guide(dense(16, 24, None))
    assert not can_guide(dense(16, 20, torch.zeros(1, 4, 4, 5)))  # an odd number of cells
    assert not can_guide(dense(16, 26, torch.zeros(1, 4, 4, 6)))
    assert not can_guide(dense(16, 48, torch.zeros(1, 4, 4, 6)))  # cells that are not square
    assert not can_guide(dense(16, 24, torch.zeros(1, 4, 0, 6)))  # a photo too small for one cell
    assert not can_guide(dense(16, 24, torch.zeros(1, 4, 4, 0)))


def test_matching_is_guided_where_both_photos_have_coarse_descriptors() -> None:
    """Coarse descriptors that exclude the true matches: guided, none is found; without them, all are."""
    fine, same = unit_maps(16, 16, 16)[None], one_hot_cells(4, 4)
    first = DenseDescriptors(fine, torch.ones(1, 1, 16, 16), 4, (64, 64), coarse=same[None])
    misled = replace(first, coarse=same.roll(2, dims=2)[None])
    options = MatcherConfig(refinement="none", min_score=0.0)
    matching = matching_for(options, SCALE, torch.device("cpu"))
    assert type(matching) is GuidedMatching
    patch = GuideOptions(cells=1, reach=0)

    def true_matches(dense0: DenseDescriptors, dense1: DenseDescriptors) -> int:
        found = matching.between(dense0, dense1)
        return int((found.index0 == found.index1).sum())

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            "coam.matching.dense.guided_dual_softmax",
            lambda *maps: guided_dual_softmax(*maps, options=patch),
        )
        assert true_matches(first, first) == 256
        assert true_matches(first, misled) == 0
        for without in (replace(misled, coarse=None), replace(misled, coarse=torch.zeros(1, 4, 3, 4))):
            assert true_matches(first, without) == true_matches(without, first) == 256


def test_settings_decide() -> None:
    device = torch.device("cpu")
    assert type(matching_for(MatcherConfig(), 20.0, device)) is GuidedMatching
    for config, scale in (
        (MatcherConfig(search="exact"), 20.0),
        (MatcherConfig(grid=64), 20.0),
        (MatcherConfig(ranking="paper"), 20.0),
        (MatcherConfig(), 75.0),
    ):
        assert type(matching_for(config, scale, device)) is DenseMatching


def test_real_pairs_get_the_matches_of_the_exact_search() -> None:
    """The bundled stereo pair, and one view by day against another by night."""
    stereo, yard = samples.motorcycle(), samples.courtyard()
    night = (yard.image("day_04"), yard.image("night_02"))
    for pair, least in (((stereo.left, stereo.right), 0.995), (night, 0.99)):
        found = []
        for search in ("guided", "exact"):
            matcher = coam.load_matcher(resolution=512, looks="once", search=search, device="cpu")
            matches = matcher.match(*pair)
            found.append(set(zip(matches.ids0.tolist(), matches.ids1.tolist(), strict=True)))
        guided, exact = found
        assert len(guided & exact) >= least * len(exact)
