from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coam.matching.flow import (
    FlowOptions,
    _averaged,
    _can_guide,
    _fine_difference,
    _median,
    _propagated,
    _shape,
    _vote,
    carried,
    find_flow,
    find_flow_both_ways,
    round_trip,
)
from coam.matching.propagation import PropagationOptions
from coam.models.outputs import DenseDescriptors
from support.toy_pictures import described

ROWS, COLUMNS = 12, 16


def places() -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS)


def test_every_cell_finds_its_shifted_partner() -> None:
    flow = find_flow(described(places()), described(places().roll((2, 3), dims=(0, 1))), 20.0)
    assert flow.stride == 4
    inside = flow.points[0, : ROWS - 2, : COLUMNS - 3]
    rows, columns = torch.meshgrid(torch.arange(ROWS - 2), torch.arange(COLUMNS - 3), indexing="ij")
    wanted = torch.stack([(columns + 3.5) * 4 - 0.5, (rows + 2.5) * 4 - 0.5], dim=-1)
    torch.testing.assert_close(inside, wanted)
    similarity, distinctiveness, probability, coherence = flow.evidence[0, :, 2:-4, 2:-5]
    assert similarity.min() > 0.999
    assert distinctiveness.min() == pytest.approx(0.8)
    assert probability.min() > 0.9
    assert coherence.min() == pytest.approx(1.0)


def test_a_match_that_leaves_its_neighbours_needs_to_be_clearly_better() -> None:
    view, style = described(places()), described(places())
    # The cell (5, 6) sees what (1, 1) of STYLE shows a little better than what its own place shows.
    own, far = style.descriptors[0, :, 5, 6], style.descriptors[0, :, 1, 1]
    for share, wanted in ((0.52, (6, 5)), (0.8, (1, 1))):
        mixed = torch.nn.functional.normalize((1 - share) * own + share * far, dim=0)
        view.descriptors[0, :, 5, 6] = mixed
        x, y = find_flow(view, style, 20.0).points[0, 5, 6]
        assert (x.item(), y.item()) == (wanted[0] * 4 + 1.5, wanted[1] * 4 + 1.5)


def test_the_fine_stage_places_every_second_pixel() -> None:
    labels = places()
    fine_labels = torch.arange(4 * ROWS * COLUMNS).view(2 * ROWS, 2 * COLUMNS) + 5000
    fine = described(fine_labels).descriptors * 60  # sharp peaks
    moved = fine.roll(1, dims=3)  # one fine cell: two pixels to the right, half a cell
    base = described(labels)
    dense0 = DenseDescriptors(base.descriptors, base.score, 4, base.size, fine, 2)
    dense1 = DenseDescriptors(base.descriptors, base.score, 4, base.size, moved, 2)
    flow = find_flow(dense0, dense1, 20.0)
    assert flow.stride == 2
    assert flow.points.shape == (1, 2 * ROWS, 2 * COLUMNS, 2)
    shift = flow.points[0, 4, 10] - torch.tensor([10 * 2 + 0.5, 4 * 2 + 0.5])
    torch.testing.assert_close(shift, torch.tensor([2.0, 0.0]), atol=1e-3, rtol=0)


def test_photos_of_different_sizes_and_nothing_in_common() -> None:
    flow = find_flow(described(places()), described(places()[:7, :9] + 7000), 20.0)
    assert flow.points[..., 0].max() <= 9 * 4 - 1
    assert flow.points[..., 1].max() <= 7 * 4 - 1
    assert flow.evidence[0, 2].mean() < 0.1  # hardly any probable match
    same = find_flow(described(places()), described(places()), 20.0)
    assert same.statistics()[0] > flow.statistics()[0]


def test_descriptors_at_another_stride() -> None:
    dense = described(places())
    big = DenseDescriptors(
        dense.descriptors.repeat_interleave(4, 2).repeat_interleave(4, 3),
        dense.score.repeat_interleave(4, 2).repeat_interleave(4, 3),
        1,
        dense.size,
    )
    torch.testing.assert_close(find_flow(big, big, 20.0).points, find_flow(dense, dense, 20.0).points)


def test_a_batch_gives_what_its_pairs_give_one_by_one() -> None:
    generator = torch.Generator().manual_seed(2)
    pairs = []
    for seed in range(3):
        view, style = described(places()), described(places().roll(seed, dims=1))
        noise = 0.15 * torch.randn(view.descriptors.shape, generator=generator)
        descriptors = torch.nn.functional.normalize(view.descriptors + noise, dim=1)
        score = torch.rand(view.score.shape, generator=generator)  # some cells are not worth comparing
        pairs.append((DenseDescriptors(descriptors, score, 4, view.size), style))
    together = [
        DenseDescriptors(
            torch.cat([pair[side].descriptors for pair in pairs]),
            torch.cat([pair[side].score for pair in pairs]),
            4,
            pairs[0][side].size,
        )
        for side in (0, 1)
    ]
    batch = find_flow(together[0], together[1], 20.0)
    for i, (view, style) in enumerate(pairs):
        alone = find_flow(view, style, 20.0)
        torch.testing.assert_close(batch.points[i], alone.points[0])
        torch.testing.assert_close(batch.evidence[i], alone.evidence[0], atol=1e-5, rtol=1e-4)
        assert batch.statistics(i) == pytest.approx(alone.statistics(), rel=1e-4)


def test_jitter_is_averaged_and_an_edge_between_two_motions_stays() -> None:
    own = torch.stack(torch.meshgrid(torch.arange(40.0), torch.arange(30.0), indexing="xy"), dim=-1)
    points = own * 2 + 0.5
    points[:, 20:] += 25.0  # the right half moves elsewhere
    noise = 0.8 * torch.randn(points.shape, generator=torch.Generator().manual_seed(0))
    averaged = _averaged((points + noise)[None], 2, FlowOptions())[0]
    assert (averaged - points).abs().mean() < 0.35 * noise.abs().mean()
    assert (averaged - points)[:, 18:22].abs().max() < 2.0


def test_both_ways_at_once_are_the_two_ways_alone_and_return() -> None:
    view, other = described(places()), described(places().roll((2, 3), dims=(0, 1)))
    forward, backward = find_flow_both_ways(view, other, 20.0)
    torch.testing.assert_close(forward.points, find_flow(view, other, 20.0).points)
    torch.testing.assert_close(backward.points, find_flow(other, view, 20.0).points)
    missed = round_trip(forward, backward).norm(dim=-1)[0]
    assert missed[2 : ROWS - 4, 2 : COLUMNS - 5].max() < 1e-4


def test_between_cells_the_shift_is_interpolated_but_not_across_an_edge() -> None:
    flow = find_flow(described(places()), described(places().roll(3, dims=1)), 20.0)
    points = flow.own.clone()
    points[:, :8] += 1.0  # the left half moves by one pixel, columns 8 and 9 by three, the rest far away
    points[:, 8:10] += 3.0
    points[:, 10:] += 40.0
    flow = replace(flow, points=points[None])
    asked = torch.tensor([[[13.5, 21.5], [31.5, 21.5], [38.5, 21.5], [40.5, 21.5]]])
    shift = (flow.at(asked) - asked)[0, :, 0]
    torch.testing.assert_close(shift, torch.tensor([1.0, 2.0, 3.0, 40.0]), atol=1e-4, rtol=0)


def test_motions_are_apart_by_the_length_of_their_difference_pair_by_pair() -> None:
    """Half way between two columns the mean is off by (3, 3) in one pair, by (2, 2) in the other."""
    flow = find_flow(described(places()), described(places()), 20.0)
    points = flow.own.repeat(2, 1, 1, 1)
    points[0, :, 8:] += 6.0
    points[1, :, 8:] += 4.0
    flow = replace(flow, points=points)
    asked = torch.tensor([[31.4, 21.5]]).expand(2, 1, 2)
    shift = flow.at(asked) - asked
    torch.testing.assert_close(shift[0, 0], torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(shift[1, 0], torch.full((2,), 4 * (0.5 - 0.1 / 4)), atol=1e-4, rtol=0)


def test_what_the_guided_search_is_for() -> None:
    """One pair on a CPU with coarse descriptors, cells of four pixels, exponentials that float32 holds."""
    labels = torch.arange(16 * 16).view(16, 16)
    base = described(labels)
    dense = replace(base, coarse=described(labels[::4, ::4]).descriptors)
    assert _can_guide(dense, 20.0)
    assert not _can_guide(base, 20.0)
    assert not _can_guide(dense, 100.0)
    two = replace(dense, descriptors=dense.descriptors.repeat(2, 1, 1, 1))
    assert not _can_guide(two, 20.0)
    assert not _can_guide(replace(dense, stride=8, size=(96, 128)), 20.0)


def test_cells_of_descriptors_at_any_stride() -> None:
    for size, shape in (((3, 9), (1, 2)), ((9, 3), (2, 1)), ((47, 65), (11, 16))):
        dense = replace(described(places()), stride=8, size=size)
        assert _shape(dense) == shape
        assert _shape(replace(dense, stride=4)) == (ROWS, COLUMNS)


def test_positions_are_those_of_the_smaller_photo_and_photos_alone_move_nothing() -> None:
    view, other = described(places()), described(places()[:8])
    fine = torch.randn(2, 1, 4, 2 * ROWS, 2 * COLUMNS, generator=torch.Generator().manual_seed(3))
    view, other = (
        replace(dense, fine=found[:, :, : 2 * dense.score.shape[2]], fine_stride=2)
        for dense, found in zip((view, other), fine, strict=True)
    )
    photos = torch.rand(1, 3, 48, 64), torch.rand(1, 3, 32, 64)
    plain = FlowOptions(propagation=None)
    forward, backward = find_flow_both_ways(view, other, 20.0, plain, photos)
    assert forward.positions == backward.positions == 8 * COLUMNS
    for found, alone in zip((forward, backward), find_flow_both_ways(view, other, 20.0, plain), strict=True):
        assert torch.equal(found.points, alone.points)
    tried, _ = find_flow_both_ways(view, other, 20.0, FlowOptions(propagation=PropagationOptions()), photos)
    assert not torch.equal(tried.points, forward.points)


# ---- the parts, against plain loops


def test_medians_of_squares_with_repeated_borders() -> None:
    field = torch.randn(1, 2, 6, 7, generator=torch.Generator().manual_seed(3))
    found = _median(field, 3)
    for channel in range(2):
        for row in range(6):
            for column in range(7):
                around = [
                    field[0, channel, min(max(row + r, 0), 5), min(max(column + c, 0), 6)].item()
                    for r in (-1, 0, 1)
                    for c in (-1, 0, 1)
                ]
                assert found[0, channel, row, column].item() == sorted(around)[4]


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_votes_by_a_plain_loop(seed: int) -> None:
    """What a cell's neighbours propose, whether it yields, and how far it then is from the proposal."""
    rows0, columns0, rows1, columns1 = 5, 6, 7, 4
    generator = torch.Generator().manual_seed(seed)
    cells0, cells1 = (
        torch.nn.functional.normalize(torch.randn(1, n, 3, generator=generator), dim=2)
        for n in (rows0 * columns0, rows1 * columns1)
    )
    index1 = torch.randint(rows1 * columns1, (1, rows0 * columns0), generator=generator)
    similarity = (cells0 * cells1[:, index1[0]]).sum(dim=2)
    options = FlowOptions(neighbours=3, margin=0.3)
    found, value, coherence = _vote(cells0, cells1, index1, similarity, (rows0, columns0), columns1, options)
    yielded = 0
    for cell in range(rows0 * columns0):
        row, column = divmod(cell, columns0)
        shifts = []
        for r in (-1, 0, 1):
            for c in (-1, 0, 1):
                near = (min(max(row + r, 0), rows0 - 1), min(max(column + c, 0), columns0 - 1))
                there = divmod(int(index1[0, near[0] * columns0 + near[1]]), columns1)
                shifts.append((there[0] - near[0], there[1] - near[1]))
        wanted = row + sorted(s[0] for s in shifts)[4], column + sorted(s[1] for s in shifts)[4]
        proposal = min(max(wanted[0], 0), rows1 - 1) * columns1 + min(max(wanted[1], 0), columns1 - 1)
        own = divmod(int(index1[0, cell]), columns1)
        alike = float(cells0[0, cell] @ cells1[0, proposal])
        far = max(abs(own[0] - wanted[0]), abs(own[1] - wanted[1])) > 1
        yields = far and alike > float(similarity[0, cell]) - 0.3
        yielded += yields
        assert found[0, cell] == (proposal if yields else index1[0, cell])
        assert value[0, cell].item() == pytest.approx(
            alike if yields else similarity[0, cell].item(), abs=1e-6
        )
        now = divmod(int(found[0, cell]), columns1)
        apart = (now[0] - wanted[0]) ** 2 + (now[1] - wanted[1]) ** 2
        assert coherence[0, cell].item() == pytest.approx(math.exp(-apart / 4), abs=1e-6)
    assert 3 < yielded < 27


def test_finer_cells_move_as_the_cell_they_lie_in() -> None:
    points = 100 * torch.rand(1, 3, 4, 2, generator=torch.Generator().manual_seed(5))
    found = carried(points, 4, (7, 9), 2)  # one row and one column more than twice as many
    assert found.shape == (1, 7, 9, 2)
    for row in range(7):
        for column in range(9):
            cell = min(row // 2, 2), min(column // 2, 3)
            shift = points[0, cell[0], cell[1]] - torch.tensor([cell[1] * 4 + 1.5, cell[0] * 4 + 1.5])
            expected = shift + torch.tensor([column * 2 + 0.5, row * 2 + 0.5])
            torch.testing.assert_close(found[0, row, column], expected)


def test_what_moves_nearly_alike_is_averaged_by_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(6)
    shift = torch.randn(1, 6, 5, 2, generator=generator) * 1.5
    own = torch.stack(torch.meshgrid(torch.arange(5.0), torch.arange(6.0), indexing="xy"), dim=-1) * 2 + 0.5
    found = _averaged(shift + own, 2, FlowOptions(averaged=3, max_disagreement=2.0))[0] - own
    for row in range(6):
        for column in range(5):
            mine = shift[0, row, column]
            around = [
                shift[0, min(max(row + r, 0), 5), min(max(column + c, 0), 4)]
                for r in (-1, 0, 1)
                for c in (-1, 0, 1)
            ]
            agreeing = torch.stack([other for other in around if (other - mine).norm() < 2.0])
            torch.testing.assert_close(found[row, column], agreeing.mean(dim=0), atol=1e-5, rtol=0)


def test_the_fine_difference_is_a_root_mean_square() -> None:
    fine0, fine1 = torch.randn(2, 1, 8, 6, 10, generator=torch.Generator().manual_seed(7)).unbind()
    base = described(torch.arange(15).view(3, 5))
    dense0, dense1 = (
        DenseDescriptors(base.descriptors, base.score, 4, base.size, fine, 2) for fine in (fine0, fine1)
    )
    own = torch.stack(torch.meshgrid(torch.arange(10.0), torch.arange(6.0), indexing="xy"), dim=-1) * 2 + 0.5
    found = _fine_difference(dense0, dense1, (own + torch.tensor([2.0, 0.0]))[None])[0]
    expected = (fine1[0, :, :, 1:] - fine0[0, :, :, :-1]).square().mean(dim=0).sqrt()
    torch.testing.assert_close(found[:, :-1], expected, atol=1e-5, rtol=0)
    without = replace(dense1, fine=None)
    assert _fine_difference(dense0, without, own[None]).abs().max() == 0


def test_guided_and_exact_search_agree_where_coarse_descriptors_tell() -> None:
    labels = torch.arange(16 * 16).view(16, 16)
    pair = []
    for shown in (labels, labels.roll((4, 8), dims=(0, 1))):
        dense = described(shown)
        pair.append(replace(dense, coarse=described(shown[::4, ::4]).descriptors))
    guided = find_flow_both_ways(*pair, 20.0)
    exact = find_flow_both_ways(*pair, 20.0, FlowOptions(search="exact"))
    for one, other in zip(guided, exact, strict=True):
        torch.testing.assert_close(one.points, other.points)
        assert (one.evidence[0, 2] > 0.5).all()


def test_with_photos_neighbours_motions_are_tried_if_there_are_fine_maps() -> None:
    """Fine maps that say nothing: the photos show a motion by (6, -4), which some of the cells know."""
    photo0 = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(9))
    photo1 = torch.roll(photo0, (-4, 6), dims=(2, 3))
    labels = torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS)
    base, nothing = described(labels), torch.zeros(1, 4, 2 * ROWS, 2 * COLUMNS)
    dense = replace(base, fine=nothing, fine_stride=2)
    own = torch.stack(torch.meshgrid(torch.arange(32.0), torch.arange(24.0), indexing="xy"), dim=-1) * 2 + 0.5
    points = own.clone()
    points[:, :12] += torch.tensor([6.0, -4.0])
    options = PropagationOptions(around=1)
    found = _propagated(points[None], dense, dense, (photo0, photo1), options)[0] - own
    inside = found[4:-3, 2:-6]
    assert (inside == torch.tensor([6.0, -4.0])).all(dim=2).float().mean() > 0.99
    for pair in ((base, dense), (dense, base)):
        assert torch.equal(_propagated(points[None], *pair, (photo0, photo1), options), points[None])
