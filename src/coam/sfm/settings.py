"""settings.json: what a model folder was made with, so that nobody mixes two kinds of matches in it.

Matches cost hours, so a run with another matcher is refused where there are matches already. A model costs
minutes and is made again from the same matches when only later settings have changed.

`matcher` and `options` are those of the model that lies in the folder, written when it is there.
`matching` is the matcher of the matches, from the first one until their model is there:
a killed run has matches and no model of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from coam.errors import ConfigError
from coam.sfm.matching.stamps import recorded_values, weights_digest
from coam.sfm.model_folder import SETTINGS, ModelFolder
from coam.store.documents import read_json, write_sealed_json

ONLY_SPEED = ("cached_images", "workers")  # settings that change no result


def describe_matcher(matcher: Any) -> dict[str, Any]:
    """Model name, digest of the weights and settings of a matcher, as JSON values."""
    config = getattr(matcher, "config", None)
    return {
        "kind": type(matcher).__name__,
        "model": getattr(getattr(matcher, "file", None), "name", ""),
        "weights": weights_digest(matcher)[:16],
        "settings": _without_speed(asdict(config)) if is_dataclass(config) else {},  # type: ignore[arg-type]
    }


def read_settings(folder: str | Path) -> dict[str, Any]:
    """The content of a model folder's settings.json; empty where there is none.

    A damaged one is an error: what it says decides how new photos are matched with those of the model.
    """
    path = ModelFolder(folder).settings
    advice = f"write it again with: coam sfm PHOTOS -o {folder}"
    return dict(read_json(path, SETTINGS, advice)) if path.exists() else {}


def write_settings(folder: ModelFolder, matcher: Any, options: Any) -> None:
    """Note what the model that lies in `folder` was made with. options: `SfmOptions`."""
    _write(folder, _as_json(matcher, options))


def refuse_other_matches(folder: ModelFolder, matcher: Any) -> None:
    """One clear line where `folder` holds matches of another matcher."""
    changed = _changed_matcher(folder, _as_json(matcher))
    if changed:
        raise ConfigError(
            f"{folder.root}: holds matches made with {changed}; choose another folder, "
            "or add --overwrite to match again"
        )


def claim_folder(folder: ModelFolder, matcher: Any, options: Any, say: Callable[[str], None]) -> None:
    """Note whose matches come into `folder` from now on, and say what has changed.

    Everything must have been checked before: what was there counts as made with other settings afterwards.
    """
    before, now = folder.read_settings(), _as_json(matcher, options)
    changed = _changed_matcher(folder, now)
    if changed:
        say(f"{folder.root} was made with {changed}: all pairs are matched again")
    changed = differences(before.get("options", {}), now["options"])
    if changed and folder.summary.exists():
        say(f"the model in {folder.root} was made with {changed}: it is built again")
    _write(folder, before | {"matching": now["matcher"]})


def _changed_matcher(folder: ModelFolder, now: Mapping[str, Any]) -> str:
    """In what the matcher of the matches in `folder` differs; empty where it does not, or has none there."""
    before = folder.read_settings()
    made = before.get("matching", before.get("matcher", {}))
    return differences(made, now["matcher"]) if folder.has_matches() else ""


def _write(folder: ModelFolder, content: Mapping[str, Any]) -> None:
    if folder.read_settings() != content:
        write_sealed_json(folder.settings, content)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """ "tracks merged (now refined), ..." for what both have and differs; empty where nothing does."""
    flat_before, flat_now = _flat(before), _flat(now)
    return ", ".join(
        f"{name.replace('_', ' ')} {value} (now {flat_now[name]})"
        for name, value in flat_before.items()
        if name in flat_now and flat_now[name] != value
    )


def warning_about_weights(folder: str | Path, matcher: Any) -> str:
    """One line when `matcher` has other weights than the one that made the model; empty when it has not."""
    made = read_settings(folder).get("matcher", {}).get("weights", "")
    weights = describe_matcher(matcher)["weights"]
    if not made or made == weights:
        return ""
    return (
        f"the model was made with other weights ({made}, now {weights}), so fewer matches reach its points; "
        "give its weights with --model, or build it again"
    )


def _as_json(matcher: Any, options: Any = None) -> dict[str, Any]:
    content = {
        "matcher": describe_matcher(matcher),
        "options": _without_speed(recorded_values(options)) if options is not None else {},
    }
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))  # tuples become lists, as when read
    return plain


def _without_speed(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ONLY_SPEED}


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested settings as words: name of the group, own name -> value."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and name != "given":
            flat |= _flat(value, "" if name == "settings" else f"{before}{name} ")
        else:
            flat[before + name] = str(value)[:60]
    return flat
