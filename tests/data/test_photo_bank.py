"""The photo bank: what it samples equals what the photos say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from coam.data.photo_bank import (
    BankPart,
    PhotoBank,
    add_copies,
    aligned_groups,
    change_photos,
    evenly_chosen,
    load_part,
    pack_bank,
    photos_below,
    read_square,
)
from coam.errors import DataError, ImageError

SIDE = 16


@pytest.fixture
def photos() -> Tensor:
    noise = torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return (noise * 256).to(torch.uint8)


@pytest.fixture
def bank(photos: Tensor) -> PhotoBank:
    return pack_bank([BankPart(photos, [[0], [1], [2]])])


def by_hand(photo: Tensor, x: float, y: float) -> np.ndarray:
    """Bilinear colour at pixel (x, y), first pixel centre (0, 0), borders repeated."""
    side = photo.shape[-1]
    image = photo.double().numpy() / 255
    x, y = min(max(x, 0.0), side - 1.0), min(max(y, 0.0), side - 1.0)
    left, top = int(x), int(y)
    right, bottom = min(left + 1, side - 1), min(top + 1, side - 1)
    fx, fy = x - left, y - top
    upper = image[:, top, left] * (1 - fx) + image[:, top, right] * fx
    lower = image[:, bottom, left] * (1 - fx) + image[:, bottom, right] * fx
    return upper * (1 - fy) + lower * fy


def sample(bank: PhotoBank, index: int, u: Tensor, v: Tensor, level: int = 0) -> Tensor:
    return bank.sample(torch.full(u.shape, index), u, v, torch.full(u.shape, level))


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_bilinear_samples_of_every_level(bank: PhotoBank, photos: Tensor, index: int, level: int) -> None:
    u, v = torch.rand(2, 50, generator=torch.Generator().manual_seed(index + level))
    photo, side = photos[index], SIDE >> level
    if level:  # a mipmap is the rounded mean of blocks
        photo = (
            photo.double().reshape(3, side, 2**level, side, 2**level).mean(dim=(2, 4)).round().to(torch.uint8)
        )
    expected = [
        by_hand(photo, float(a) * side - 0.5, float(b) * side - 0.5) for a, b in zip(u, v, strict=True)
    ]
    assert np.allclose(sample(bank, index, u, v, level).numpy(), np.stack(expected), atol=2e-5)


def test_beyond_the_border_the_photo_is_mirrored(bank: PhotoBank) -> None:
    u, v = torch.rand(2, 40, generator=torch.Generator().manual_seed(5))
    inside = sample(bank, 1, u, v)
    assert torch.allclose(sample(bank, 1, -u, v), inside, atol=1e-4)
    assert torch.allclose(sample(bank, 1, 2 - u, 2 - v), inside, atol=1e-4)
    assert torch.allclose(sample(bank, 1, u + 4, v - 2), inside, atol=1e-4)


def test_levels_may_differ_from_point_to_point(bank: PhotoBank) -> None:
    u = torch.rand(3, generator=torch.Generator().manual_seed(6))
    mixed = bank.sample(torch.tensor([0, 1, 2]), u, u, torch.tensor([2, 0, 1]))
    for i, level in enumerate((2, 0, 1)):
        assert torch.equal(mixed[i], sample(bank, i, u[i : i + 1], u[i : i + 1], level)[0])


def test_groups_of_several_parts(photos: Tensor) -> None:
    parts = [
        BankPart(photos[:1], [[0]], tolerance=0.01, light=0.4),
        BankPart(photos[1:], [[0, 1]], tolerance=0.02, light=0.6, other_member=0.5),
    ]
    bank = pack_bank(parts)
    assert bank.count == 3
    assert bank.groups.tolist() == [[0, 0], [1, 2]]
    assert bank.sizes.tolist() == [1, 2]
    assert bank.tolerance.tolist() == pytest.approx([0.01, 0.02])
    assert bank.light.tolist() == pytest.approx([0.4, 0.6])
    assert bank.other_member.tolist() == [1.0, 0.5]


def test_a_side_that_has_no_quarter_is_refused() -> None:
    with pytest.raises(DataError, match="divisible by 4"):
        pack_bank([BankPart(torch.zeros(1, 3, 18, 18, dtype=torch.uint8), [[0]])])


def write(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def test_files_become_groups(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", (255, 0, 0))
    write(tmp_path / "a" / "2.PNG", (0, 255, 0))
    write(tmp_path / "b" / "3.png", (0, 0, 255))
    (tmp_path / "a" / "notes.txt").write_text("no photo")
    assert [p.name for p in photos_below(tmp_path)] == ["1.png", "2.PNG", "3.png"]
    assert load_part(tmp_path, 8, torch.device("cpu")).groups == [[0], [1], [2]]
    groups = aligned_groups(tmp_path)
    assert [[p.name for p in g] for g in groups] == [["1.png", "2.PNG"]]
    part = load_part(tmp_path, 8, torch.device("cpu"), aligned=True, tolerance=0.1, light=0.2)
    assert part.photos.shape == (2, 3, 8, 8)
    assert part.photos[0, :, 3, 3].tolist() == [255, 0, 0]
    assert part.groups == [[0, 1]]
    assert (part.tolerance, part.light) == (0.1, 0.2)


def test_copies_join_the_groups_of_their_photos(photos: Tensor) -> None:
    part = BankPart(photos, [[0, 1], [2]])
    assert torch.equal(change_photos(photos, lambda pictures: pictures), photos)
    copied = add_copies(part, lambda pictures: pictures * 0 + 0.5, share=0.25)
    assert copied.groups == [[0, 1, 3, 4], [2, 5]]
    assert torch.equal(copied.photos[:3], photos)
    assert (copied.photos[3:] == 128).all()
    assert copied.other_member == 0.25


def test_at_most_so_many_groups() -> None:
    groups = [[Path(str(i))] for i in range(10)]
    assert evenly_chosen(groups, None) == groups
    assert evenly_chosen(groups, 10) == groups
    assert [int(str(g[0])) for g in evenly_chosen(groups, 4)] == [0, 2, 5, 7]


def test_hidden_folders_hold_no_groups(tmp_path: Path) -> None:
    for name in ("spot/1.png", "spot/2.png", ".unfinished/new/1.png", ".unfinished/new/2.png"):
        write(tmp_path / name, (255, 0, 0))
    assert [[p.parent.name for p in g] for g in aligned_groups(tmp_path)] == [["spot", "spot"]]


def test_photos_are_turned_upright(tmp_path: Path) -> None:
    picture = np.zeros((20, 40, 3), dtype=np.uint8)
    picture[:, 20:] = 255  # white on the right; orientation 6 turns it clockwise: white at the bottom
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture).save(tmp_path / "turned.png", exif=exif)
    upright = read_square(tmp_path / "turned.png", 8)
    assert upright[:, :3].max() < 60
    assert upright[:, 5:].min() > 190


def test_clear_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no photos found"):
        photos_below(tmp_path)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"this is no JPEG")
    with pytest.raises(ImageError, match=r"broken\.jpg: is not a picture that can be read"):
        load_part(tmp_path, 8, torch.device("cpu"))
    write(tmp_path / "alone" / "1.png", (1, 2, 3))
    broken.unlink()
    with pytest.raises(DataError, match="two or more photos"):
        aligned_groups(tmp_path)
