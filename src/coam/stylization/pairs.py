"""Training pairs with the true answer: rendered worlds of photos whose light really or plausibly changed.

Each plane of a world carries photos of one place under different light: real ones (seasons, day and night,
exposures), copies in the style of other photos, and copies under synthetic light. VIEW is what the first
camera sees, STYLE what the second camera sees under other light, and the true answer is what the first camera
sees under STYLE's light: it is rendered, so it is known everywhere, not only where both cameras look.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.data.adain import Restyle
from coam.data.mixture import portions
from coam.data.photo_bank import BankPart, PhotoBank, add_copies, change_photos, load_part, pack_bank
from coam.data.photometric import PhotometricConfig, change_light
from coam.data.sample import Draw
from coam.data.worlds import World, WorldConfig, WorldPairs, follow, render
from coam.errors import ConfigError, DataError
from coam.geometry.coordinates import cell_centres

# Light that belongs to the scene: it may be drawn into a photo before it is hung into a world.
SCENE_LIGHT = PhotometricConfig(
    night=0.45, local_light=0.6, shadow=0.5, haze=0.25, other_sensor=0.0, blur=0.0, noise=0.0, jpeg=0.0
)
NO_CHANGE = PhotometricConfig(**dict.fromkeys(PhotometricConfig.__dataclass_fields__, 0.0))
# What changes a whole picture alike, whatever it shows: STYLE and the true answer get the same.
WHOLE_PICTURE = replace(NO_CHANGE, tone=0.7, cast=0.5, saturation=0.4, grey=0.06)
# What a camera and a file do to STYLE, and what must not be imitated. Seldom: a network that is shown much of
# it learns to smooth, and then errs on clean photos, which most are.
CAMERA = replace(NO_CHANGE, blur=0.05, noise=0.1, jpeg=0.15)
COMMON_STRIDE = 4  # pixels between the places where it is asked whether STYLE sees what VIEW sees


@dataclass(frozen=True)
class LightSource:
    """A folder of photos in the mixture."""

    path: str  # below the data root
    share: float = 1.0  # of the planes, relative to the other folders
    aligned: bool = False  # the photos of one sub-folder show the same place pixel by pixel
    light: float = 1.0  # strength of the synthetic changes of whole pictures, 0 to 1
    copies: bool = False  # every photo also exists in another style and under synthetic light


@dataclass(frozen=True)
class StyleBatch:
    """B training examples; all (B, 3, S, S) in [0, 1]."""

    view: Tensor
    style: Tensor
    answer: Tensor  # VIEW in the light of STYLE: the truth
    common: Tensor  # (B, 1, S, S) bool: STYLE sees what VIEW sees here


class StyledWorlds(WorldPairs):
    """Rendered examples; `unchanged` is the share of pairs whose photos are the same for both cameras."""

    def __init__(self, bank: PhotoBank, config: WorldConfig, weight: Tensor, unchanged: float) -> None:
        super().__init__(bank, config, weight)
        self.unchanged = unchanged

    def render_styled(self, batch: int, size: int, generator: torch.Generator) -> tuple[StyleBatch, Tensor]:
        """`batch` examples of `size` x `size` pixels before light and camera, and how far light changes."""
        world, group = self.build(batch, size, generator)
        same = Draw(generator, batch).chance(self.unchanged, 1)
        photo1 = torch.where(same, world.photo[0], world.photo[1])
        world = replace(world, photo=torch.stack([world.photo[0], photo1]))
        relit = replace(world, photo=torch.stack([photo1, photo1]))
        rendered = StyleBatch(
            view=render(world, self.bank, size, 0),
            style=render(world, self.bank, size, 1),
            answer=render(relit, self.bank, size, 0),
            common=self._common(world, size),
        )
        return rendered, self.bank.light[group].mean(dim=1)

    def _common(self, world: World, size: int) -> Tensor:
        side = size // COMMON_STRIDE
        places = cell_centres(side, side, COMMON_STRIDE, self.bank.device)
        batch = len(world.reach)
        _, visible, _ = follow(world, places.expand(batch, -1, -1), size, 0)
        cells = visible.view(batch, 1, side, side).float()
        return F.interpolate(cells, scale_factor=COMMON_STRIDE, mode="nearest") > 0.5


class StylePairs:
    """Examples from planes (homographies) and worlds (parallax, occlusion) of one photo bank."""

    def __init__(self, bank: PhotoBank, weight: Tensor, worlds: float) -> None:
        planes = WorldConfig(scene="plane", tilt=38.0, zoom=1.9, roll=8.0, strong_roll_share=0.1)
        parallax = WorldConfig(scene="world", yaw=20.0, zoom=1.9, roll=6.0, strong_roll_share=0.1)
        self.sources = (
            StyledWorlds(bank, planes, weight, unchanged=0.1),
            # Planes of a world change one by one, which light never does; so most worlds keep their photos.
            StyledWorlds(bank, parallax, weight, unchanged=0.6),
        )
        self.shares = (1.0 - worlds, worlds)

    def sample(self, batch: int, size: int, generator: torch.Generator) -> StyleBatch:
        """`batch` examples of `size` x `size` pixels, all randomness from `generator`."""
        counts = portions(self.shares, batch)
        parts = [
            source.render_styled(count, size, generator)
            for source, count in zip(self.sources, counts, strict=True)
            if count
        ]
        fields = StyleBatch.__dataclass_fields__
        rendered = {name: torch.cat([getattr(part, name) for part, _ in parts]) for name in fields}
        light = torch.cat([strength for _, strength in parts])
        together = torch.cat([rendered["style"], rendered["answer"]], dim=3)
        style, answer = change_light(together, light, generator, WHOLE_PICTURE).chunk(2, dim=3)
        return StyleBatch(
            view=change_light(rendered["view"], light, generator),
            style=change_light(style, torch.ones_like(light), generator, CAMERA),
            answer=answer,
            common=rendered["common"],
        )


def load_pairs(
    sources: tuple[LightSource, ...],
    root: Path,
    device: torch.device,
    *,
    side: int,
    worlds: float,
    max_groups: int | None = None,
    adain: str | None = None,
    styles: str | None = None,
    seed: int = 0,
) -> StylePairs:
    """All photos of `sources` below `root` on the device. `adain` and `styles` are needed where `copies` are.

    side: pixels of a photo in the photo bank; worlds: share of examples with parallax; max_groups: photos (or
    groups of aligned ones) taken of each folder at most.
    """
    parts, weights = [], []
    for source in sources:
        folder = root / source.path
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder of photos (a source of the stylizer's recipe)")
        part = load_part(
            folder, side, device, aligned=source.aligned, max_groups=max_groups, light=source.light
        )
        if source.copies:
            if adain is None or styles is None:
                raise ConfigError(f"source {source.path!r} asks for copies: give `adain` and `styles`")
            part = _with_copies(part, Restyle(root / adain, root / styles, seed, device), seed)
        parts.append(part)
        weights += [source.share / len(part.groups)] * len(part.groups)
    return StylePairs(pack_bank(parts), torch.tensor(weights), worlds)


def _with_copies(part: BankPart, restyle: Restyle, seed: int) -> BankPart:
    """Every photo of a part also in the style of another photo and under synthetic light."""
    generator = torch.Generator(device=part.photos.device).manual_seed(seed)

    def relight(photos: Tensor) -> Tensor:
        strength = torch.ones(len(photos), device=photos.device)
        return change_light(photos, strength, generator, SCENE_LIGHT)

    relit = change_photos(part.photos, relight)
    part = add_copies(part, restyle, 1.0)
    count = len(part.photos)
    groups = [[*group, count + group[0]] for group in part.groups]  # group[0] is the photo itself
    return replace(part, photos=torch.cat([part.photos, relit]), groups=groups)
