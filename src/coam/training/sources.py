"""From a recipe's source list to a mixture on a device."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from coam.data.bank import (
    BankPart,
    PhotoBank,
    aligned_groups,
    list_photos,
    load_part,
    pack_bank,
    read_square,
    single_groups,
)
from coam.data.mixture import Ingredient, Mixture
from coam.data.posed import PosedMixture
from coam.data.sample import PairSource
from coam.data.worlds import WorldConfig, WorldPairs
from coam.errors import ConfigError, DataError
from coam.models.registry import config_from_dict
from coam.training.config import Recipe, SourceSpec

STYLED_AT_ONCE = 16  # pictures
RENDERED = ("plane", "world")
Source = TypeVar("Source")


def build_source(recipe: Recipe, root: Path, device: torch.device) -> Mixture | PosedMixture:
    """All sources of a recipe, of the kind that its loss needs: correspondences, or cameras alone."""
    if recipe.loss.kind == "epipolar":
        from coam.training.sources_posed import build_posed_mixture

        return build_posed_mixture(recipe, root, device)
    return build_mixture(recipe, root, device)


def check_sources(recipe: Recipe, root: Path) -> None:
    """Every path of the recipe must be there."""
    for spec in recipe.sources:
        if not (root / spec.path).exists():
            raise DataError(f"{root / spec.path}: not there (source {spec.kind!r} of recipe {recipe.name!r})")


def build_mixture(recipe: Recipe, root: Path, device: torch.device) -> Mixture:
    """All sources of a recipe; paths are relative to `root`.

    Sources of one kind of rendered world become one source that chooses among their photos: a batch of many
    worlds costs little more than a batch of one.
    """
    check_sources(recipe, root)
    ingredients = [
        Ingredient(_measured(spec, recipe, root, device), spec.share, spec.light)
        for spec in recipe.sources
        if spec.kind not in RENDERED
    ]
    for worlds in rendered_worlds(recipe, root, device):
        source = WorldPairs(worlds.bank, worlds.config, worlds.weight)
        ingredients.append(Ingredient(source, worlds.share, wrong=worlds.config.scene == "plane"))
    return Mixture(ingredients, recipe.wrong_pairs)


def _measured(spec: SourceSpec, recipe: Recipe, root: Path, device: torch.device) -> PairSource:
    from coam.data.megadepth import MegaDepthPairs
    from coam.data.rgbd import RgbdPairs
    from coam.data.tracks import TrackPairs

    if spec.kind == "depth":
        refuse_style(spec)
        return with_options(MegaDepthPairs, spec, root / spec.path, device=device)
    if spec.kind not in ("tracks", "rgbd"):
        raise ConfigError(
            f"a source of kind {spec.kind!r} knows cameras only, no correspondences; use the loss 'epipolar'"
        )
    kind: Callable[..., TrackPairs | RgbdPairs] = TrackPairs if spec.kind == "tracks" else RgbdPairs
    source = with_options(kind, spec, root / spec.path, device=device)
    if spec.stylize > 0:
        source.photos.add_copies(Restyle(recipe, root, device), spec.stylize)
    return source


def refuse_style(spec: SourceSpec) -> None:
    """Photos that are read from disk again and again have no styled copies."""
    if spec.stylize > 0:
        raise ConfigError(f"a source of kind {spec.kind!r} cannot stylize; leave it out")


def with_options(kind: Callable[..., Source], spec: SourceSpec, *given: Any, **also_given: Any) -> Source:
    """Build a source with the recipe's options; one that is a mapping becomes the dataclass it stands for."""
    known = inspect.signature(kind).parameters
    options = {}
    for name, value in spec.options.items():
        if name not in known:
            raise ConfigError(f"a source of kind {spec.kind!r} has no option {name!r}")
        default = known[name].default
        if dataclasses.is_dataclass(default) and isinstance(value, dict):
            value = config_from_dict(type(default), value)
        options[name] = value
    return kind(*given, **also_given, **options)


@dataclass(frozen=True)
class Worlds:
    """What all sources of one kind of rendered world are made of."""

    bank: PhotoBank
    config: WorldConfig
    weight: Tensor  # (groups of the bank,)
    share: float


def rendered_worlds(recipe: Recipe, root: Path, device: torch.device) -> Iterator[Worlds]:
    """One entry for each kind of rendered world in the recipe; they share one bank of photos."""
    rendered = [spec for spec in recipe.sources if spec.kind in RENDERED]
    if not rendered:
        return
    bank, owner = _bank(rendered, recipe, root, device)
    for kind in RENDERED:
        specs = [spec for spec in rendered if spec.kind == kind]
        if specs:
            share = sum(spec.share for spec in specs)
            yield Worlds(bank, _world_config(specs), _group_weights(specs, owner), share)


def _bank(
    specs: list[SourceSpec], recipe: Recipe, root: Path, device: torch.device
) -> tuple[PhotoBank, list[str]]:
    """One bank of the photos of all sources, and for each of its groups the path it came from."""
    parts, owner = [], []
    for path, spec in {spec.path: spec for spec in specs}.items():
        groups = aligned_groups(root / path) if spec.aligned else single_groups(root / path)
        groups = evenly_chosen(groups, recipe.max_groups)
        part = load_part(groups, recipe.bank_side, device, spec.tolerance, spec.light)
        if spec.stylize > 0:
            part = add_styled_copies(part, spec.stylize, recipe, root)
        parts.append(part)
        owner += [path] * len(part.groups)
    return pack_bank(parts), owner


def evenly_chosen(groups: list[list[Path]], most: int | None) -> list[list[Path]]:
    """At most `most` groups, spread over the whole list."""
    if most is None or len(groups) <= most:
        return groups
    return [groups[i * len(groups) // most] for i in range(most)]


def _world_config(specs: list[SourceSpec]) -> WorldConfig:
    options = specs[0].options
    if any(spec.options != options for spec in specs):
        raise ConfigError(f"all sources of kind {specs[0].kind!r} share one view, so give them equal options")
    return config_from_dict(WorldConfig, {"scene": specs[0].kind, **options})


def _group_weights(specs: list[SourceSpec], owner: list[str]) -> Tensor:
    """How often each group is chosen: a source's share, spread evenly over its groups."""
    share = {spec.path: spec.share / owner.count(spec.path) for spec in specs}
    return torch.tensor([share.get(path, 0.0) for path in owner])


def add_styled_copies(part: BankPart, how_often: float, recipe: Recipe, root: Path) -> BankPart:
    """Every photo gets a copy in the style of a random style photo; the two become a group."""
    restyle = Restyle(recipe, root, part.photos.device)
    copies = torch.empty_like(part.photos)
    for start in range(0, len(copies), STYLED_AT_ONCE):
        styled = restyle(part.photos[start : start + STYLED_AT_ONCE].float() / 255)
        copies[start : start + STYLED_AT_ONCE] = (styled * 255).round().to(torch.uint8)
    count = len(copies)
    groups = [[*group, *(count + member for member in group)] for group in part.groups]
    return replace(part, photos=torch.cat([part.photos, copies]), groups=groups, other_member=how_often)


class Restyle:
    """Gives pictures (B, 3, H, W) in [0, 1] the look of random style photos, by the recipe's seed."""

    def __init__(self, recipe: Recipe, root: Path, device: torch.device) -> None:
        if recipe.adain is None or recipe.styles is None:
            raise ConfigError(
                f"recipe {recipe.name!r} asks for stylize but gives no `adain` weights or no `styles`"
            )
        from coam.data.adain import AdaIN

        self.adain = AdaIN.from_file(root / recipe.adain).to(device).eval()
        photos = [
            torch.from_numpy(read_square(path, 256).copy()) for path in list_photos(root / recipe.styles)
        ]
        self.styles = torch.stack(photos).to(device)
        self.generator = torch.Generator().manual_seed(recipe.seed)

    @torch.inference_mode()
    def __call__(self, pictures: Tensor) -> Tensor:
        """One style for each picture, one strength for all."""
        chosen = torch.randint(len(self.styles), (len(pictures),), generator=self.generator)
        style = self.styles[chosen.to(self.styles.device)].float() / 255
        strength = 0.2 + 0.55 * float(torch.rand((), generator=self.generator))
        return self.adain.stylize(pictures, style, strength).clamp(0, 1)
