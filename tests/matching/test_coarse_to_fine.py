"""CAPSNet's search against a plain loop over points, and at the borders of the maps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from coam.capsnet import losses as epi
from coam.errors import ConfigError
from coam.geometry.coordinates import cell_centres
from coam.matching.coarse_to_fine import COARSE_STRIDE, _span, coarse_to_fine
from coam.matching.dense import CoarseToFineMatching, matching_for
from coam.matching.grid import sample_map
from coam.matching.settings import MatcherConfig
from coam.models.network import Capabilities
from coam.models.outputs import DenseDescriptors

SCALE, REACH = 12.0, 21.0


def unit(*shape: int, seed: int) -> torch.Tensor:
    return normalize(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


@pytest.fixture
def maps() -> tuple[torch.Tensor, torch.Tensor]:
    """Fine (8, 24, 32) at stride 4 and coarse (6, 6, 8) at stride 16 of a photo of 128 x 96."""
    fine, coarse = unit(24, 32, 8, seed=1), unit(6, 8, 6, seed=2)
    return fine.permute(2, 0, 1), coarse.permute(2, 0, 1)


def test_it_answers_as_the_losses_of_training_do(maps) -> None:
    """`coam.capsnet.losses` masks a whole map instead of cutting a window: independent code."""
    fine, coarse = maps
    query, coarse_query = unit(40, 8, seed=3), unit(40, 6, seed=4)
    found = coarse_to_fine(query, coarse_query, fine, coarse, 4, REACH, SCALE)
    guess = epi.best_position(epi.similarities(coarse_query[None], coarse[None], 1.0), COARSE_STRIDE)
    logits = epi.keep_window(epi.similarities(query[None], fine[None], SCALE), guess, 4, REACH)
    expected, _ = epi.expected_position(logits, 4)
    torch.testing.assert_close(found.expected, expected[0], atol=1e-3, rtol=0)
    assert found.best.tolist() == logits[0].flatten(1).argmax(dim=1).tolist()
    probability = logits[0].flatten(1).softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(found.probability, probability, atol=1e-5, rtol=0)
    assert ((found.expected - guess[0]).abs() <= REACH).all()


def test_a_window_narrower_than_a_cell_keeps_one(maps) -> None:
    fine, coarse = maps
    found = coarse_to_fine(unit(5, 8, seed=5), unit(5, 6, seed=6), fine, coarse, 4, 0.0, SCALE)
    assert torch.isfinite(found.expected).all()
    assert (found.probability > 0).all()


def test_mutual_matches_find_the_same_photo_again(maps) -> None:
    fine, coarse = maps
    dense = DenseDescriptors(fine[None], torch.ones(1, 1, 24, 32), 4, (96, 128), coarse=coarse[None])
    config = MatcherConfig(search="coarse_to_fine", refinement="none")
    matching = matching_for(config, SCALE, torch.device("cpu"))
    assert type(matching) is CoarseToFineMatching
    found = matching.between(dense, dense)
    # Of 768: between random coarse descriptors interpolation leads some to a third cell.
    assert len(found.index0) > 500
    assert (found.index0 == found.index1).float().mean() > 0.95
    points = found.points0[:9]
    answers = matching.of_keypoints(dense, dense, points)
    assert (answers.points1 - points).norm(dim=1).median() < 4.0


def test_it_is_refused_where_it_means_nothing() -> None:
    wanted = MatcherConfig(search="coarse_to_fine")
    with pytest.raises(ConfigError, match="not trained for coarse_to_fine"):
        wanted.for_network(Capabilities(4))
    with pytest.raises(ConfigError, match="leave grid and ranking out"):
        MatcherConfig(search="coarse_to_fine", grid=64).for_network(Capabilities(4, coarse_to_fine=True))
    assert wanted.for_network(Capabilities(4, coarse_to_fine=True)).refinement == "quadratic"


@pytest.mark.parametrize("window", [0.125, 0.5])
def test_the_window_is_a_share_of_the_longer_side(maps, window: float) -> None:
    """Of a photo of 128 x 96 pixels: half of 0.125 * 128 is 8 pixels on either side."""
    fine, coarse = maps
    dense = DenseDescriptors(fine[None], torch.ones(1, 1, 24, 32), 4, (96, 128), coarse=coarse[None])
    config = MatcherConfig(search="coarse_to_fine", refinement="none", window=window)
    matching = matching_for(config, SCALE, torch.device("cpu"))
    points = cell_centres(32, 24, 4)[::37]
    found = matching.of_keypoints(dense, dense, points)
    queries = fine.flatten(1).t()[::37], sample_map(coarse[None], points[None], 16, normalise=True)[0]
    expected = coarse_to_fine(*queries, fine, coarse, 4, window * 64, SCALE)
    torch.testing.assert_close(found.points1, expected.expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.score, expected.probability, atol=1e-5, rtol=0)


def test_both_photos_keep_their_own_positions(maps) -> None:
    """Photo 1 is the upper two thirds of photo 0: a cell has its place in either, and the same number."""
    fine, coarse = maps
    whole = DenseDescriptors(fine[None], torch.ones(1, 1, 24, 32), 4, (96, 128), coarse=coarse[None])
    part = DenseDescriptors(
        fine[None, :, :16], torch.ones(1, 1, 16, 32), 4, (64, 128), coarse=coarse[None, :, :4]
    )
    matching = matching_for(
        MatcherConfig(search="coarse_to_fine", refinement="none"), SCALE, torch.device("cpu")
    )
    for one, other in ((whole, part), (part, whole)):
        found = matching.between(one, other)
        assert len(found.index0) > 200
        for points, index, dense in (
            (found.points0, found.index0, one),
            (found.points1, found.index1, other),
        ):
            columns, rows = dense.size[1] // 4, dense.size[0] // 4
            torch.testing.assert_close(points, cell_centres(columns, rows, 4)[index])


@pytest.mark.parametrize(
    ("centre", "reach", "count", "span"),
    [
        (9.5, 4.0, 8, (1, 4)),  # centres at 1.5, 5.5, 9.5, 13.5, ...
        (9.5, 3.9, 8, (2, 3)),
        (1.5, 9.0, 8, (0, 3)),
        (29.5, 9.0, 8, (5, 8)),
        (7.5, 1.0, 8, (2, 3)),  # between two: one of them
        (23.5, 8.0, 2, (1, 2)),  # beyond the last
        (-9.0, 1.0, 8, (0, 1)),
    ],
)
def test_cells_of_a_window_by_hand(centre: float, reach: float, count: int, span: tuple[int, int]) -> None:
    assert _span(centre, reach, 4.0, count) == span
