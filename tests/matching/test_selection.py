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
