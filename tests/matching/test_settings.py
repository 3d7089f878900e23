"""The typed keywords of the matcher are the fields of its configuration."""

from __future__ import annotations

from dataclasses import fields

import pytest

from coam.errors import ConfigError
from coam.matching.settings import PRESETS, MatcherConfig, MatcherOptions, Preset, get_args


def test_options_have_the_names_and_types_of_the_configuration() -> None:
    # both as written: the file has `from __future__ import annotations`
    options = {name: hint.__forward_arg__ for name, hint in MatcherOptions.__annotations__.items()}
    assert options == {field.name: field.type for field in fields(MatcherConfig)}
    assert get_args(Preset) == tuple(PRESETS)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "wide", None])
def test_a_tolerance_is_a_positive_number(value: object) -> None:
    with pytest.raises(ConfigError, match="keypoint_tolerance must be above 0 pixels"):
        MatcherConfig(keypoint_tolerance=value)
