"""Choosing matches: ranks within cells by hand, and the trade between score and spread."""

import torch

from coam.matching.selection import choose_spread, rank_within


def test_ranks_within_bins_by_hand() -> None:
    bins = torch.tensor([0, 1, 0, 0, 1])
    score = torch.tensor([0.5, 0.9, 0.7, 0.5, 0.1])
    assert rank_within(bins, score).tolist() == [1, 0, 0, 2, 1]  # equal scores: the first stays first


def test_without_crowding_the_best_are_chosen() -> None:
    points = torch.tensor([[1.0, 1.0], [2.0, 2.0], [50.0, 50.0]])
    score = torch.tensor([0.9, 0.8, 0.7])
    assert choose_spread(points, score, 2, 10.0, 1.0).tolist() == [0, 1]


def test_with_crowding_a_lonely_one_wins_over_a_second_in_the_same_cell() -> None:
    points = torch.tensor([[1.0, 1.0], [2.0, 2.0], [50.0, 50.0]])
    score = torch.tensor([0.9, 0.8, 0.7])
    assert choose_spread(points, score, 2, 10.0, 0.8).tolist() == [0, 2]  # 0.8 * 0.8 = 0.64 < 0.7


def test_nothing_to_choose_from() -> None:
    assert choose_spread(torch.zeros(0, 2), torch.zeros(0), 5, 10.0, 0.9).tolist() == []


def test_neighbouring_rows_of_cells_do_not_share_a_bin() -> None:
    """The last cell of a row and the first of the next are two cells, whatever the number of columns."""
    points = torch.tensor([[25.0, 5.0], [5.0, 15.0], [26.0, 6.0]])  # cells (2, 0), (0, 1), (2, 0) of side 10
    score = torch.tensor([0.9, 0.8, 0.85])
    # The third is second in its cell: 0.5 * 0.85. The second is alone in its own, and counts fully.
    assert choose_spread(points, score, 2, cell=10.0, crowding=0.5).tolist() == [0, 1]


def test_cells_on_a_diagonal_do_not_share_a_bin() -> None:
    points = torch.tensor([[5.0, 15.0], [15.0, 5.0], [6.0, 16.0]])  # cells (0, 1), (1, 0), (0, 1)
    score = torch.tensor([0.9, 0.8, 0.85])
    assert choose_spread(points, score, 2, cell=10.0, crowding=0.5).tolist() == [0, 1]


def test_cells_beside_each_other_do_not_share_a_bin() -> None:
    points = torch.tensor([[5.0, 5.0], [15.0, 5.0], [45.0, 95.0]])  # cells (0, 0), (1, 0), (4, 9)
    score = torch.tensor([0.9, 0.8, 0.7])
    assert choose_spread(points, score, 2, cell=10.0, crowding=0.5).tolist() == [0, 1]
