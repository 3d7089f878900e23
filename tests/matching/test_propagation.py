"""Neighbours' motions, tried by patches and fine features, on made pictures with known motion."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coam.matching.propagation import Likeness, PropagationOptions, mean_around, patch_vectors, propagate

FLAT = PropagationOptions(around=1)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def likeness(photo0: Tensor, photo1: Tensor, options: PropagationOptions = FLAT) -> Likeness:
    """Of photos (3, H, W) whose fine maps say nothing."""
    fine0, fine1 = (torch.zeros(4, p.shape[1] // 2, p.shape[2] // 2) for p in (photo0, photo1))
    return Likeness(fine0, fine1, 2, photo0, photo1, options)


def test_patches_by_hand() -> None:
    """A step edge: the patch on it is +-1/3 (side 3), its contrast-reversed copy correlates by -1."""
    photo = torch.zeros(3, 8, 8)
    photo[:, :, 4:] = 1.0
    vectors, shape = patch_vectors(photo, side=3, least_contrast=0.0)
    assert shape == (7, 7)
    # The corners between columns 3 and 4 have grey 1/2: around them lie 0, 1/2, 1.
    on_edge = vectors.view(7, 7, 9)[3, 3].view(3, 3)
    expected = torch.tensor([-1.0, 0.0, 1.0]) / 6**0.5
    torch.testing.assert_close(on_edge, expected.expand(3, 3))
    reverse, _ = patch_vectors(1 - photo, side=3, least_contrast=0.0)
    assert float(reverse.view(7, 7, 9)[3, 3] @ on_edge.flatten()) == pytest.approx(-1.0, abs=1e-6)
    darker, _ = patch_vectors(0.2 + 0.5 * photo, side=3, least_contrast=0.0)
    torch.testing.assert_close(darker.view(7, 7, 9)[3, 3].view(3, 3), expected.expand(3, 3))
    flat, _ = patch_vectors(torch.full((3, 8, 8), 0.3), side=3, least_contrast=0.03)
    assert float(flat.abs().max()) < 1e-4


def test_a_motion_spreads_from_one_side_over_all_that_moves_alike() -> None:
    """Photo 1 is photo 0 moved by (6, -4); the flow knows it in its first columns only."""
    photo0 = noise(3, 48, 64)
    photo1 = torch.roll(photo0, (-4, 6), dims=(1, 2))
    alike = likeness(photo0, photo1)
    own = alike.own.view(24, 32, 2)
    points = own.clone()
    points[:, :12] += torch.tensor([6.0, -4.0])
    found = propagate(points, alike) - own
    inside = found[4:-3, 2:-6]  # what the other photo shows, whole patches of it
    assert (inside == torch.tensor([6.0, -4.0])).all(dim=2).float().mean() > 0.99
    unmoved = propagate(own + torch.tensor([6.0, -4.0]), alike) - own
    assert (unmoved == torch.tensor([6.0, -4.0])).all()  # there is no other motion to take


@pytest.mark.parametrize("known", [(slice(None), slice(-1, None)), (slice(-1, None), slice(None))])
def test_a_motion_spreads_from_the_last_column_and_the_last_row(known: tuple[slice, slice]) -> None:
    photo0 = noise(3, 48, 64, seed=3)
    photo1 = torch.roll(photo0, (-4, -6), dims=(1, 2))
    alike = likeness(photo0, photo1)
    own = alike.own.view(24, 32, 2)
    points = own.clone()
    points[known] += torch.tensor([-6.0, -4.0])
    found = propagate(points, alike) - own
    beside = found[4:-1, -6:-1] if known[1].start else found[-6:-1, 6:-1]
    assert (beside == torch.tensor([-6.0, -4.0])).all(dim=2).float().mean() > 0.95


def test_background_that_moved_with_an_object_goes_back_to_its_own_motion() -> None:
    """A square moves by 8 pixels, its surroundings by 0; the flow gives a seam of 8 pixels to the square."""
    background, square = noise(3, 64, 96, seed=1), noise(3, 24, 24, seed=2)
    photo0, photo1 = background.clone(), background.clone()
    photo0[:, 20:44, 30:54] = square
    photo1[:, 20:44, 38:62] = square
    alike = likeness(photo0, photo1, PropagationOptions())
    own = alike.own.view(32, 48, 2)
    points = own.clone()
    points[6:26, 11:31, 0] += 8  # four cells more on every side
    moved = (propagate(points, alike) - own)[..., 0]
    assert (moved[11:21, 16:26] == 8).all()
    above, below, left = moved[6:9, 11:26], moved[23:26, 11:26], moved[11:21, 11:14]
    for seam in (above, below, left):
        assert (seam == 0).float().mean() > 0.95


def test_fine_features_decide_where_pictures_are_flat() -> None:
    photo = torch.full((3, 32, 32), 0.5)
    fine0 = noise(8, 16, 16)
    alike = Likeness(fine0, torch.roll(fine0, 2, dims=2), 2, photo, photo, FLAT)
    own = alike.own
    right, wrong = alike(own + torch.tensor([4.0, 0.0])), alike(own)
    assert (right > wrong).view(16, 16)[:, :-2].all()
    torch.testing.assert_close(right.view(16, 16)[:, :-2], torch.zeros(16, 14))


def test_mean_around_is_the_mean_of_the_square_in_the_map() -> None:
    values = noise(2, 3, 9, 12)
    expected = F.avg_pool2d(values, 5, stride=1, padding=2, count_include_pad=False)
    torch.testing.assert_close(mean_around(values, 5), expected)


def test_likeness_by_a_plain_loop() -> None:
    """Correlation of the nearest patches less how far the nearest fine features are apart."""
    photo0, photo1, fine0, fine1 = (
        noise(3, 8, 12),
        noise(3, 10, 8, seed=1),
        noise(4, 4, 6),
        noise(4, 5, 4, seed=3),
    )
    options = PropagationOptions(patch=3, patch_weight=2.0, around=1)
    alike = Likeness(fine0, fine1, 2, photo0, photo1, options)
    places = noise(24, 2, seed=4) * torch.tensor([12.0, 14.0]) - 2.0  # some beyond the photo, of 8 x 10
    found = alike(places)
    vectors0, (_, columns0) = patch_vectors(photo0, 3, options.least_contrast)
    vectors1, (rows1, columns1) = patch_vectors(photo1, 3, options.least_contrast)
    for cell in range(24):
        row, column = divmod(cell, 6)
        x, y = places[cell].tolist()
        corner = min(max(round(y - 0.5), 0), rows1 - 1), min(max(round(x - 0.5), 0), columns1 - 1)
        correlation = vectors0[row * 2 * columns0 + column * 2] @ vectors1[corner[0] * columns1 + corner[1]]
        near = min(max(round((y - 0.5) / 2), 0), 4), min(max(round((x - 0.5) / 2), 0), 3)
        apart = (fine0[:, row, column] - fine1[:, near[0], near[1]]).square().mean().sqrt()
        assert found[cell].item() == pytest.approx(float(2.0 * correlation - apart), abs=1e-5)


def test_contrast_below_the_floor_counts_less() -> None:
    """A step of height h: the patch's energy is 6 (h / 2)^2 of side 3, beside a floor of (0.03 * 3)^2."""
    photo = torch.zeros(3, 8, 8)
    photo[:, :, 4:] = 0.1
    vectors, _ = patch_vectors(photo, side=3, least_contrast=0.03)
    energy = 6 * 0.05**2
    assert vectors.view(7, 7, 9)[3, 3].square().sum().item() == pytest.approx(
        energy / (energy + 0.09**2), rel=1e-4
    )


def test_a_motion_is_taken_from_each_side_and_no_farther_than_the_steps() -> None:
    """One cell knows the motion; steps of 2 and 1 carry it at most 3 cells a way, in all four directions."""
    photo0 = noise(3, 48, 64)
    alike = likeness(
        photo0, torch.roll(photo0, (-4, 6), dims=(1, 2)), PropagationOptions(around=1, steps=(2, 1))
    )
    own = alike.own.view(24, 32, 2)
    points = own.clone()
    points[12, 16] += torch.tensor([6.0, -4.0])
    moved = ((propagate(points, alike) - own) == torch.tensor([6.0, -4.0])).all(dim=2)
    expected = torch.zeros(24, 32, dtype=torch.bool)
    expected[9:16, 13:20] = True
    assert (moved == expected).all()
