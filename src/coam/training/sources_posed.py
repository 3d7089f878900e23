"""From a recipe's source list to a mixture of posed pairs: what the loss "epipolar" trains on."""

from __future__ import annotations

from pathlib import Path

import torch

from coam.data.posed import PosedIngredient, PosedMixture, PosedSource, WorldPoses
from coam.data.posed_photos import (
    DEFAULT_CHOICE,
    DEFAULT_CROP,
    MegaDepthPoses,
    PosedChoice,
    PosedPairList,
    PosedPhotos,
    pairs_from_colmap,
    pairs_from_list,
    pairs_from_rgbd,
    pairs_from_tracks,
)
from coam.data.windows import CropOptions
from coam.training.config import Recipe, SourceSpec
from coam.training.sources import (
    RENDERED,
    Restyle,
    check_sources,
    refuse_style,
    rendered_worlds,
    with_options,
)


def build_posed_mixture(recipe: Recipe, root: Path, device: torch.device) -> PosedMixture:
    """All sources of a recipe, cameras only; paths are relative to `root`."""
    check_sources(recipe, root)
    ingredients = [
        PosedIngredient(_photos(spec, recipe, root, device), spec.share, spec.light)
        for spec in recipe.sources
        if spec.kind not in RENDERED
    ]
    for worlds in rendered_worlds(recipe, root, device):
        source = WorldPoses(worlds.bank, worlds.config, worlds.weight)
        ingredients.append(PosedIngredient(source, worlds.share))
    return PosedMixture(ingredients)


def _photos(spec: SourceSpec, recipe: Recipe, root: Path, device: torch.device) -> PosedSource:
    if spec.kind == "depth":
        refuse_style(spec)
        return with_options(MegaDepthPoses, spec, root / spec.path, device=device)

    def build(
        choice: PosedChoice = DEFAULT_CHOICE,
        crop: CropOptions = DEFAULT_CROP,
        scenes: list[str] | None = None,
    ) -> PosedPhotos:
        return PosedPhotos(_listed(spec.kind, root / spec.path, choice, scenes), device, crop)

    source = with_options(build, spec)
    if spec.stylize > 0:
        source.photos.add_copies(Restyle(recipe, root, device), spec.stylize)
    return source


def _listed(kind: str, path: Path, choice: PosedChoice, scenes: list[str] | None) -> PosedPairList:
    if kind == "tracks":
        return pairs_from_tracks(path, scenes, choice)
    if kind == "rgbd":
        return pairs_from_rgbd(path, None if choice == DEFAULT_CHOICE else choice)
    if kind == "colmap":
        inside = [path / "sparse" / "0", path / "sparse", path]
        return pairs_from_colmap(next(f for f in inside if f.is_dir()), path / "images", choice)
    return pairs_from_list(path, choice)
