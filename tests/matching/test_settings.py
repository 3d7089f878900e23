"""The typed keywords of the matcher are the fields of its configuration."""

from __future__ import annotations

from dataclasses import fields

import pytest

from coam.errors import ConfigError
from coam.matching.settings import PRESETS, MatcherConfig, MatcherOptions, Preset, get_args
from coam.models.network import Capabilities


def test_options_have_the_names_and_types_of_the_configuration() -> None:
    # both as written: the file has `from __future__ import annotations`
    options = {name: hint.__forward_arg__ for name, hint in MatcherOptions.__annotations__.items()}
    assert options == {field.name: field.type for field in fields(MatcherConfig)}
    assert get_args(Preset) == tuple(PRESETS)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "wide", None])
def test_a_tolerance_is_a_positive_number(value: object) -> None:
    with pytest.raises(ConfigError, match="keypoint_tolerance must be above 0 pixels"):
        MatcherConfig(keypoint_tolerance=value)


@pytest.mark.parametrize(
    ("name", "least"),
    [("resolution", 32), ("grid", 1), ("max_matches", 0), ("fine_radius", 0), ("cached_images", 1)],
)
def test_whole_numbers_have_a_least_one(name: str, least: int) -> None:
    assert getattr(MatcherConfig(**{name: least}), name) == least
    assert MatcherConfig(grid=None).grid is None
    for value in (least - 1, float(least), True, None if name != "grid" else "4", "8"):
        with pytest.raises(ConfigError, match=f"{name} must be a whole number of at least {least}"):
            MatcherConfig(**{name: value})


@pytest.mark.parametrize("name", ["min_score", "min_distinctiveness", "crowding", "window"])
def test_shares_lie_between_0_and_1(name: str) -> None:
    for value in (0, 1, 0.5):
        assert getattr(MatcherConfig(**{name: value}), name) == value
    for value in (-0.01, 1.01, float("nan"), "half", None):
        with pytest.raises(ConfigError, match=f"{name} must lie between 0 and 1"):
            MatcherConfig(**{name: value})


def test_an_effort_is_a_number_of_at_least_0() -> None:
    assert [MatcherConfig(effort=value).effort for value in (0, 0.5, 40)] == [0, 0.5, 40]
    for value in (-0.1, float("inf"), float("nan"), "much", None):
        with pytest.raises(ConfigError, match="effort must be a number of at least 0"):
            MatcherConfig(effort=value)


@pytest.mark.parametrize("name", ["ranking", "search", "refinement", "looks", "alignment"])
def test_what_is_no_choice_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be one of .*, not 'odd'"):
        MatcherConfig(**{name: "odd"})


def test_what_is_left_to_the_network_is_filled_in() -> None:
    coarse = Capabilities(4, refinements=("fine", "none"))
    assert MatcherConfig().for_network(coarse).refinement == "fine"
    assert MatcherConfig(refinement="none").for_network(coarse).refinement == "none"
    with pytest.raises(ConfigError, match="cannot refine by 'paper'; choose fine, none"):
        MatcherConfig(refinement="paper").for_network(coarse)
    assert MatcherConfig().for_network(coarse).grid is None
    assert MatcherConfig().for_network(Capabilities(2)).grid == 128
    assert MatcherConfig(grid=64).for_network(Capabilities(2)).grid == 64
