"""Everything that decides how the stylizer is trained, read from YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coam.errors import ConfigError
from coam.store.documents import read_yaml
from coam.stylization.pairs import LightSource
from coam.training.config import MOST_SIDE, check_run, from_mapping, recipe_path


@dataclass(frozen=True)
class SizePhase:
    """A stretch of the training at one image size."""

    until: float  # share of the training, 0 to 1
    size: int = 256  # pixels, square
    batch: int = 24  # examples


@dataclass(frozen=True)
class StylizeRecipe:
    """A whole training of the stylizer."""

    name: str
    sources: tuple[LightSource, ...]
    phases: tuple[SizePhase, ...]
    steps: int  # at most; a time budget may end it earlier, and the learning rate then falls with the time
    trains: str = "stylizer"  # what tells this recipe from one of a matcher
    validation: tuple[LightSource, ...] = ()  # held-out photos; those that are not there are left out
    matcher: str = "cdunet-lite1"  # the model whose matches are mended; it stays as it is
    network: dict[str, Any] = field(default_factory=dict)  # fields of StylizerConfig
    adain: str | None = None  # AdaIN weights below the data root
    styles: str | None = None  # folder of style photos below the data root
    bank_side: int = 448  # pixels of a photo in device memory, square
    max_groups: int | None = None  # of each folder at most so many, evenly chosen
    worlds: float = 0.35  # share of examples with parallax
    descriptor_noise: float = 0.05  # largest deviation added to descriptors, so that matches also fail
    beyond_common: float = 0.3  # weight of the loss where STYLE does not see what VIEW sees
    refine_from: float = 0.15  # share of the training after which stage 2 learns too
    lr: float = 1.5e-3  # of stage 1
    refiner_lr: float = 1e-3
    judge_lr: float = 6e-4
    warmup: int = 100  # steps
    final_factor: float = 0.02  # of the learning rates at the end of the cosine
    l1: float = 60.0  # weight of the L1 loss of stage 2
    features: float = 1.0  # weight of feature matching
    fool: float = 0.1  # weight of the discriminator's verdict
    ema: float = 0.998  # decay of the moving average that becomes the model
    seed: int = 0
    log_every: int = 25  # steps
    save_every: int = 500  # steps

    def __post_init__(self) -> None:
        check_run(self)
        if not 32 <= self.bank_side <= MOST_SIDE:
            raise ConfigError(f"recipe {self.name!r}: bank_side must lie in 32 ... {MOST_SIDE} pixels")
        if any(phase.size < 64 or phase.size % 32 or phase.batch < 1 for phase in self.phases):
            raise ConfigError(f"recipe {self.name!r}: a size must be a multiple of 32, from 64 on")

    def phase_at(self, progress: float) -> SizePhase:
        """The phase that holds at this share of the training."""
        return next((phase for phase in self.phases if progress < phase.until), self.phases[-1])


def is_stylizer_recipe(name: str | Path) -> bool:
    """Whether `coam train NAME` trains the stylizer: its file says so."""
    values = read_yaml(recipe_path(name), "give a recipe", ConfigError)
    return isinstance(values, dict) and values.get("trains") == "stylizer"


def load_stylize_recipe(name: str | Path = "stylize") -> StylizeRecipe:
    """The recipe of a YAML file, or by the name of one that comes with the package."""
    path = recipe_path(name)
    recipe: StylizeRecipe = from_mapping(
        StylizeRecipe, read_yaml(path, "give a recipe", ConfigError), path.name
    )
    return recipe
