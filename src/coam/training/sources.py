"""From a recipe's list of sources to one mixture on a device."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor

from coam.data.adain import Restyle
from coam.data.device_photos import DevicePhotos
from coam.data.mixture import Ingredient, Mixture
from coam.data.photo_bank import PhotoBank, add_copies, load_part, pack_bank
from coam.data.sample import BatchSource
from coam.data.worlds import WorldConfig
from coam.errors import ConfigError, DataError
from coam.models.registry import config_from_dict
from coam.training.config import Recipe, SourceSpec

RENDERED = ("plane", "world")


@dataclass(frozen=True)
class SourceKinds:
    """What gives the batches of each kind of source: "module:name", imported when a recipe asks for it."""

    rendered: str  # (bank, config, weight) -> source of planar worlds: the kinds "plane" and "world"
    measured: dict[str, str]  # kind -> (path, device=..., **options) -> source


CORRESPONDENCES = SourceKinds(
    rendered="coam.data.worlds:WorldPairs",
    measured={
        "tracks": "coam.data.photo_pairs:TrackPairs",
        "rgbd": "coam.data.photo_pairs:RgbdPairs",
        "depth": "coam.data.megadepth:MegaDepthPairs",
    },
)


def build_mixture(
    recipe: Recipe, root: Path, device: torch.device, kinds: SourceKinds = CORRESPONDENCES
) -> Mixture[Any]:
    """All sources of a recipe; paths are relative to `root`.

    Sources of one kind of rendered world become one source that chooses among their photos: a batch of many
    worlds costs little more than a batch of one.
    """
    for spec in recipe.sources:
        if not (root / spec.path).exists():
            raise DataError(f"{root / spec.path}: not there (source {spec.kind!r} of recipe {recipe.name!r})")
        if spec.kind not in RENDERED and spec.kind not in kinds.measured:
            raise ConfigError(
                f"the loss {recipe.loss.kind!r} learns nothing from a source of kind {spec.kind!r};"
                f" it takes {', '.join([*RENDERED, *kinds.measured])}"
            )
    ingredients = [
        Ingredient(_measured(spec, recipe, root, device, kinds), spec.share, spec.light)
        for spec in recipe.sources
        if spec.kind not in RENDERED
    ]
    rendered = _rendered(recipe, root, device, kinds)
    return Mixture([*ingredients, *rendered], recipe.wrong_pairs, recipe.photometric)


def _measured(
    spec: SourceSpec, recipe: Recipe, root: Path, device: torch.device, kinds: SourceKinds
) -> BatchSource[Any]:
    """A source with the recipe's options; one that is a mapping becomes the dataclass it stands for."""
    builder = resolve_name(kinds.measured[spec.kind])
    known = inspect.signature(builder).parameters
    options = dict(spec.options)
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"a source of kind {spec.kind!r} has no option {name!r}")
        default = known[name].default
        if dataclasses.is_dataclass(default) and isinstance(value, dict):
            options[name] = config_from_dict(type(default), value)
    source: BatchSource[Any] = builder(root / spec.path, device=device, **options)
    if spec.stylize > 0:
        photos = getattr(source, "photos", None)
        if not isinstance(photos, DevicePhotos):  # read from disk again and again, so there are no copies
            raise ConfigError(f"a source of kind {spec.kind!r} cannot stylize; leave it out")
        photos.add_copies(_restyle(recipe, root, device), spec.stylize)
    return source


def _restyle(recipe: Recipe, root: Path, device: torch.device) -> Restyle:
    if recipe.adain is None or recipe.styles is None:
        raise ConfigError(
            f"recipe {recipe.name!r} asks for stylize but gives no `adain` weights or no `styles`"
        )
    return Restyle(root / recipe.adain, root / recipe.styles, recipe.seed, device)


def _rendered(
    recipe: Recipe, root: Path, device: torch.device, kinds: SourceKinds
) -> Iterator[Ingredient[Any]]:
    """One source for each kind of rendered world in the recipe; they share one photo bank."""
    rendered = [spec for spec in recipe.sources if spec.kind in RENDERED]
    if not rendered:
        return
    bank, owner = _bank(rendered, recipe, root, device)
    for kind in RENDERED:
        specs = [spec for spec in rendered if spec.kind == kind]
        if any(spec.options != specs[0].options for spec in specs):
            raise ConfigError(f"all sources of kind {kind!r} share one view, so give them equal options")
        if specs:
            config = config_from_dict(WorldConfig, {"scene": kind, **specs[0].options})
            source = resolve_name(kinds.rendered)(bank, config, _group_weights(specs, owner))
            share = sum(spec.share for spec in specs)
            yield Ingredient(source, share, wrong=config.scene == "plane")


def _bank(
    specs: list[SourceSpec], recipe: Recipe, root: Path, device: torch.device
) -> tuple[PhotoBank, list[str]]:
    """One bank of the photos of all sources, and for each of its groups the path it came from."""
    parts, owner = [], []
    for path, spec in {spec.path: spec for spec in specs}.items():
        part = load_part(
            root / path,
            recipe.bank_side,
            device,
            aligned=spec.aligned,
            max_groups=recipe.max_groups,
            tolerance=spec.tolerance,
            light=spec.light,
        )
        if spec.stylize > 0:
            part = add_copies(part, _restyle(recipe, root, device), spec.stylize)
        parts.append(part)
        owner += [path] * len(part.groups)
    return pack_bank(parts), owner


def _group_weights(specs: list[SourceSpec], owner: list[str]) -> Tensor:
    """How often each group is chosen: a source's share, spread evenly over its groups."""
    share = {spec.path: spec.share / owner.count(spec.path) for spec in specs}
    return torch.tensor([share.get(path, 0.0) for path in owner])
