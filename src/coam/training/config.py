"""Recipes: everything that decides what a training run does, as frozen dataclasses read from YAML."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from coam.data.photometric import PhotometricConfig
from coam.errors import ConfigError
from coam.store.documents import read_yaml

MOST_SIDE = 8192  # pixels of a training picture
RECIPES = Path(__file__).parent / "recipes"  # those that come with the package

# Loss -> the objective that has it, "module:Class" (a `coam.training.objective.Objective`), imported when a
# recipe asks for it. The class also says which kinds of sources it learns from.
OBJECTIVES: dict[str, str] = {
    "grid": "coam.training.objective:CorrespondenceObjective",
    "dual_softmax": "coam.training.objective:CorrespondenceObjective",
    "nce": "coam.training.objective:CorrespondenceObjective",
    "hinge": "coam.training.objective:CorrespondenceObjective",
    "nce_literal": "coam.training.objective:CorrespondenceObjective",
    "epipolar": "coam.capsnet.objective:EpipolarObjective",
}


@dataclass(frozen=True)
class ModelSpec:
    """The network and its initial weights."""

    architecture: str = "stacked"  # a name of coam.models.registry.NETWORKS
    # Fields of that architecture's configuration; with `start`, those that are to differ from the file's.
    config: dict[str, Any] = field(default_factory=dict)
    encoder_weights: str | None = None  # ImageNet weights of the encoder (.safetensors or .pth)
    # A model name or .safetensors to fine-tune, instead of `architecture` and `encoder_weights`.
    start: str | None = None


@dataclass(frozen=True)
class SourceSpec:
    """One source of training pairs in the mixture."""

    # "plane" (homographies), "world" (planar worlds), "tracks" (of COLMAP models), "rgbd", "depth"
    # (MegaDepth); with the loss "epipolar", which needs cameras only, also "colmap" and "pairs".
    kind: str
    # Below the data root: folder of photos ("plane", "world"), packed file ("tracks", "rgbd"), MegaDepth's
    # folder ("depth"), folder with images/ and the model in sparse/0/, sparse/ or itself ("colmap"), folder
    # with the photos and pairs_with_gt.txt ("pairs").
    path: str
    share: float = 1.0  # of each batch, relative to the other sources
    aligned: bool = False  # the photos of one sub-folder show the same place pixel by pixel
    light: float = 1.0  # strength of the photometric changes, 0 to 1
    tolerance: float = 0.0  # misalignment of aligned photos, as a share of the photo's side
    stylize: float = 0.0  # how often a photo is replaced by its copy in another style (needs `styles`)
    options: dict[str, Any] = field(default_factory=dict)  # fields of the source's own configuration


@dataclass(frozen=True)
class Phase:
    """A stretch of training at one image size."""

    steps: int
    size: int = 256  # pixels, square
    batch: int = 32  # pairs
    points: int = 1024  # correspondences drawn per pair
    compile: bool = False  # torch.compile the network: minutes at the start, then faster (CUDA only)


@dataclass(frozen=True)
class LossSpec:
    """The loss and its weights."""

    # A key of `OBJECTIVES`. "grid": cross entropy over all cells; "epipolar": CAPSNet's, from poses alone;
    # "nce_literal": InfoNCE with the logarithm outside the mean over points, as the appendix prints it.
    kind: str = "grid"
    score_target: Literal["correct", "confusions"] = "correct"  # "confusions": the paper's 1 / (1 + m)^tau
    coarse: float = 0.5  # weight of the cross entropy at stride 16, where the images meet
    fine: float = 0.5  # weight of the fine stage
    score: float = 0.2  # weight of the distinctiveness
    points: int = 512  # points per pair in the descriptor loss
    fine_points: int = 256  # points per pair in the fine loss
    negatives: int = 512  # per positive, for "nce", "nce_literal" and "hinge"
    # "pair": all positives of a pair are compared with the same random positions (fast); "point": each has
    # drawn its own, as in the paper (a gigabyte of gathers a step, a pair at a time)
    negatives_of: Literal["pair", "point"] = "pair"
    margin: float = 1.0  # of "hinge" and of "confusions"
    hardest: int = 3  # negatives that count once more in "hinge"
    constant_weight: bool = False  # c_x of "hinge" passes no gradient: it learns faster from the start
    fine_radius: int = 3  # cells of the fine window
    # Of "epipolar" only, which takes `coarse` and `fine` as the weights of its two levels:
    cycle: float = 0.1  # weight of leading back to the start
    window: float = 0.125  # side of the fine window over the image's
    epipolar_limit: float = 0.3  # farther from the line, over the image's side, is an outlier
    cycle_limit: float = 0.025  # only matches this near to their line, over the image's side, must lead back

    def __post_init__(self) -> None:
        if self.kind not in OBJECTIVES:
            raise ConfigError(f"loss.kind: {self.kind!r} is none of {', '.join(OBJECTIVES)}")


@dataclass(frozen=True)
class OptimiserSpec:
    """AdamW, its schedule, and the moving average."""

    lr: float = 8e-4
    encoder_factor: float = 0.25  # of the learning rate for the pretrained encoder
    weight_decay: float = 0.01
    warmup: int = 300  # steps
    final_factor: float = 0.02  # of the learning rate at the end of the cosine
    halve_every: int = 0  # steps: instead of the cosine, the rate is halved again and again
    clip: float = 1.0  # largest gradient norm
    ema: float = 0.999  # decay of the moving average that becomes the model
    freeze_encoder_norm: bool = True  # keep the statistics of the encoder's batch normalisation
    freeze_norm: bool = False  # keep those of the whole network: for fine-tuning with small batches


class RunSpec(Protocol):
    """What the training loop asks of a recipe; a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def name(self) -> str: ...
    @property
    def sources(self) -> Sized: ...
    @property
    def phases(self) -> Sized: ...
    @property
    def steps(self) -> int: ...
    @property
    def log_every(self) -> int: ...
    @property
    def save_every(self) -> int: ...


def check_run(recipe: RunSpec) -> None:
    """Refuse what no run could do."""
    if not recipe.sources or not recipe.phases:
        raise ConfigError(f"recipe {recipe.name!r} needs at least one source and one phase")
    if min(recipe.steps, recipe.log_every, recipe.save_every) < 1:
        raise ConfigError(f"recipe {recipe.name!r}: steps, log_every and save_every must be at least 1")


@dataclass(frozen=True)
class Recipe:
    """A whole training run of a matching network."""

    name: str
    sources: tuple[SourceSpec, ...]
    phases: tuple[Phase, ...]
    model: ModelSpec = ModelSpec()
    loss: LossSpec = LossSpec()
    optimiser: OptimiserSpec = OptimiserSpec()
    photometric: PhotometricConfig = field(default_factory=PhotometricConfig)  # how often light changes how
    wrong_pairs: float = 0.06  # share of pairs whose second photo shows another place
    styles: str | None = None  # folder of style photos
    adain: str | None = None  # AdaIN weights (.safetensors) for `stylize`
    bank_side: int = 512  # pixels of a photo in device memory, square
    max_groups: int | None = None  # of each folder of photos at most so many, evenly chosen (1.4 MB a photo)
    seed: int = 0
    log_every: int = 25  # steps
    save_every: int = 500  # steps

    def __post_init__(self) -> None:
        for phase in self.phases:
            if min(phase.steps, phase.batch, phase.points) < 1 or phase.size < 32 or phase.size % 32:
                raise ConfigError(
                    f"recipe {self.name!r}: a phase needs positive steps, batch and points and a size that is"
                    f" a multiple of 32, not {phase}"
                )
        check_run(self)
        if not 32 <= self.bank_side <= MOST_SIDE or any(phase.size > MOST_SIDE for phase in self.phases):
            raise ConfigError(
                f"recipe {self.name!r}: bank_side and sizes must lie in 32 ... {MOST_SIDE} pixels"
            )
        if any(source.share < 0 for source in self.sources) or sum(s.share for s in self.sources) <= 0:
            raise ConfigError(f"recipe {self.name!r}: the shares of the sources must be positive")

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)


def from_mapping(kind: Any, values: Any, where: str) -> Any:
    """Nested dataclasses from plain values; an unknown key or a wrong type is an error naming its place."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_from(kind, values, where)
    if origin is tuple:
        if not isinstance(values, list | tuple):
            raise ConfigError(f"{where}: expected a list")
        inner = typing.get_args(kind)[0]
        return tuple(from_mapping(inner, value, f"{where}[{i}]") for i, value in enumerate(values))
    if origin is Literal:
        if values not in typing.get_args(kind):
            raise ConfigError(f"{where}: {values!r} is none of {', '.join(map(str, typing.get_args(kind)))}")
        return values
    if origin in (types.UnionType, typing.Union):
        return values if values is None else from_mapping(typing.get_args(kind)[0], values, where)
    wanted = origin or kind
    if wanted is float:
        return _number(values, where)
    if not isinstance(values, wanted) or (wanted is int and isinstance(values, bool)):
        raise ConfigError(f"{where}: expected {wanted.__name__}, got {values!r}")
    return values


def _number(values: Any, where: str) -> float:
    """A float; also from text, because YAML takes 1e-4 for one."""
    try:
        number = math.nan if isinstance(values, bool) else float(values)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{where}: {values!r} is not a number")
    return number


def _dataclass_from(kind: Any, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a mapping of {kind.__name__} fields")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    for key in values:
        if key not in names:
            raise ConfigError(
                f"{where}: {kind.__name__} has no field {key!r}; it has {', '.join(sorted(names))}"
            )
    try:
        return kind(**{key: from_mapping(hints[key], v, f"{where}.{key}") for key, v in values.items()})
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def load_recipe(name: str | Path) -> Recipe:
    """A recipe from a YAML file, or by the name of one that comes with the package."""
    path = recipe_path(name)
    recipe: Recipe = from_mapping(Recipe, read_yaml(path, "give a recipe", ConfigError), path.name)
    return recipe


def recipe_path(name: str | Path) -> Path:
    """Where a recipe lies: the file itself, or the packaged one of that name."""
    path = Path(name)
    if path.suffix:
        return path
    packaged = RECIPES / f"{path}.yaml"
    if not packaged.is_file():
        names = ", ".join(sorted(p.stem for p in RECIPES.glob("*.yaml")))
        raise ConfigError(f"there is no recipe {str(path)!r}; choose one of {names} or give a .yaml file")
    return packaged
