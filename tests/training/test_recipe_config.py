"""Recipes: what is packaged loads, what is wrong is refused with its place."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

import coam
from coam.errors import ConfigError
from coam.training import config
from coam.training.config import Phase, Recipe, from_mapping, load_recipe
from coam.training.run import build_start
from support import tiny

MINIMAL = """
name: mine
sources: [{kind: plane, path: photos}]
phases: [{steps: 3}]
"""


def load(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_recipe(path)


def test_minimal_recipe_takes_the_defaults(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL)
    assert recipe.sources == (config.SourceSpec("plane", "photos"),)
    assert recipe.phases == (Phase(3),)
    assert (recipe.loss, recipe.optimiser, recipe.seed) == (config.LossSpec(), config.OptimiserSpec(), 0)


def test_the_default_models_recipe() -> None:
    recipe = load_recipe("cdunet-lite1")
    assert recipe.model.architecture == "stacked"
    assert {source.kind for source in recipe.sources} == {"plane", "world", "tracks", "rgbd"}
    assert sum(source.share for source in recipe.sources) == pytest.approx(1.0)
    assert recipe.steps == sum(phase.steps for phase in recipe.phases) > 1000


RECIPES = sorted(config.RECIPES.glob("*.yaml"))
PROVENANCE = sorted((Path(coam.__file__).parent / "weights" / "provenance").glob("*.yaml"))
OF_MATCHERS = [path for path in RECIPES if "trains: stylizer" not in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", OF_MATCHERS, ids=lambda path: path.stem)
def test_every_packaged_recipe_loads_by_its_name(path: Path) -> None:
    assert load_recipe(path.stem) == load_recipe(path)
    assert load_recipe(path.stem).name == path.stem


@pytest.mark.parametrize("path", PROVENANCE, ids=lambda path: path.stem)
def test_recipes_of_past_runs_are_files_beside_the_model_card(path: Path) -> None:
    assert load_recipe(path).name == path.stem
    card = path.parents[1] / f"{path.stem.rsplit('-', 1)[0]}.md"
    assert f"provenance/{path.name}" in card.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="there is no recipe"):
        load_recipe(path.stem)


def test_a_number_may_be_written_as_yaml_text(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + "optimiser: {lr: 1e-4, clip: 2}").optimiser.lr == 1e-4


def test_a_recipe_survives_json() -> None:
    assert asdict(from_mapping(Recipe, asdict(tiny.RECIPE), "recipe")) == asdict(tiny.RECIPE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("optimizer: {lr: 1}", r"mine\.yaml: Recipe has no field 'optimizer'; it has .*optimiser"),
        (
            "optimiser: {learning_rate: 1}",
            r"mine\.yaml\.optimiser: OptimiserSpec has no field 'learning_rate'",
        ),
        ("seed: seven", r"mine\.yaml\.seed: expected int, got 'seven'"),
        ("seed: true", r"mine\.yaml\.seed: expected int, got True"),
        ("optimiser: {lr: fast}", r"mine\.yaml\.optimiser\.lr: 'fast' is not a number"),
        ("optimiser: {lr: .nan}", r"mine\.yaml\.optimiser\.lr: nan is not a number"),
        ("optimiser: {freeze_norm: 1}", r"freeze_norm: expected bool, got 1"),
        ("loss: {kind: triplet}", r"loss\.kind: 'triplet' is none of grid, dual_softmax, nce, hinge"),
        ("loss: 3", r"mine\.yaml\.loss: expected a mapping of LossSpec"),
        ("log_every: 0", r"log_every and save_every must be at least 1"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, MINIMAL + line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nsources: []\nphases: [{steps: 3}]", "at least one source and one phase"),
        ("name: mine\nsources: {kind: plane}\nphases: [{steps: 3}]", r"sources: expected a list"),
        ("name: mine\nsources: [{kind: plane}]\nphases: [{steps: 3}]", r"sources\[0\].*path"),
        ("name: mine\nsources: [{kind: plane, path: a}]\nphases: [{steps: 3, size: 100}]", "multiple of 32"),
        ("name: mine\nsources: [{kind: plane, path: a, share: 0}]\nphases: [{steps: 3}]", "shares"),
        ("just text", "expected a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("a: " + "[" * 5000, "it nests too deeply"),
        ("a: &a [1]\nb: *a", "references"),
    ],
)
def test_broken_recipes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bank_side: 0", "bank_side"),
        ("model: {config: {heads: 0}}", r"heads: 0 is no whole number from 1"),
        ("model: {config: {rounds: []}}", r"rounds"),
        ("model: {config: {width: 0}}", r"width: 0 is no whole number from 1"),
        ("model: {config: {decoder_widths: [0, 0, 0]}}", r"decoder_widths: 0 is no whole number from 1"),
        ("model: {config: {width: 4096, descriptor_channels: 100000}}", r"no whole number from 1 to 4096"),
    ],
)
def test_sizes_that_no_network_has_are_refused_before_it_is_built(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_start(load(tmp_path, MINIMAL + line), tmp_path)
    assert "\n" not in str(caught.value)


def test_unknown_names_list_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cdunet-lite1.*smoke"):
        load_recipe("nothing")
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_recipe(tmp_path / "none.yaml")


def test_a_phase_without_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="positive steps"):
        replace(tiny.RECIPE, phases=(Phase(0),))
