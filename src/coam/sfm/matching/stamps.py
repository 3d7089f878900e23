"""Stamps: what a stored result was made from; a result with another stamp is made again.

Matches cost hours, so stamps must outlive the code. The text of settings in a stamp is therefore pinned: an
option class has a `RECORDED` signature, the class and field names at the time when results were first
stamped. `RECORDED = "DetourOptions(reach=radius, max_error)"` says that the field `radius` is recorded as
`reach`. Fields that are not in the signature came later: they count only where they differ from their
default, so that results from before stay valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from coam.store.journal import Pair

MATCHER_CONFIG = (
    "MatcherConfig(resolution, squash, grid, max_matches, min_score, min_distinctiveness, crowding, ranking, "
    "refinement, fine_radius, looks, cached_images)"
)
BEFORE = {
    "alignment": "none"
}  # what matchers did before they had these fields, where it is not their default


def recorded_text(
    settings: Any, signature: str | None = None, before: Mapping[str, Any] | None = None
) -> str:
    """Settings as they stand in stamps: `Name(field=value, ...)` after their signature.

    before: values of later fields that stand for results from before them, where these are not the defaults.
    """
    signature = signature or getattr(settings, "RECORDED", None)
    if signature is None:
        return repr(settings)
    usual = replace(type(settings)(), **(before or {}))
    pinned, later = _recorded_fields(settings, signature)
    pinned |= {name: name for name in later if getattr(settings, name) != getattr(usual, name)}
    values = [f"{name}={recorded_text(getattr(settings, field))}" for name, field in pinned.items()]
    return f"{signature.partition('(')[0]}({', '.join(values)})"


def recorded_values(settings: Any) -> dict[str, Any]:
    """Settings as they stand in settings.json and summary.json: recorded name -> value, later fields too."""
    pinned, later = _recorded_fields(settings, getattr(settings, "RECORDED", "()"))
    names = pinned | {name: name for name in later}
    return {name: _plain(getattr(settings, field)) for name, field in names.items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return recorded_values(value)
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _recorded_fields(settings: Any, signature: str) -> tuple[dict[str, str], list[str]]:
    """Recorded name -> field, of "Name(recorded=field, same)", and the names of fields that came later."""
    items = [item.partition("=") for item in signature.partition("(")[2].rstrip(")").split(", ") if item]
    pinned = {recorded: field or recorded for recorded, _, field in items}
    return pinned, [field.name for field in fields(settings) if field.name not in pinned.values()]


def matcher_key(matcher: Any) -> str:
    """What identifies the results of a matcher: its name and the settings that change its matches."""
    if hasattr(matcher, "fingerprint"):
        return str(matcher.fingerprint)
    config = getattr(matcher, "config", None)
    if config is not None:
        config = replace(config, cached_images=1)  # changes speed, not matches
    pinned = type(config).__name__ == "MatcherConfig"
    text = recorded_text(config, MATCHER_CONFIG, BEFORE) if pinned else str(config)
    return f"{type(matcher).__name__} {weights_digest(matcher)} {text}"


def descriptor_key(matcher: Any) -> str:
    """What identifies the global descriptors of a matcher: with a retrieval head, that too."""
    head = getattr(getattr(matcher, "file", None), "retrieval_sha256", "")
    return f"{matcher_key(matcher)} {head}".rstrip()


def weights_digest(matcher: Any) -> str:
    """Digest of the weights behind a matcher; empty where there are none."""
    known = getattr(getattr(matcher, "file", None), "sha256", "")
    model = getattr(matcher, "model", None)
    if known or model is None or not hasattr(model, "state_dict"):
        return str(known)
    import torch

    digest = hashlib.sha1(usedforsecurity=False)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def text_digest(text: str) -> str:
    """SHA-1 of a text, in hexadecimal digits."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def pair_stamps(pairs: Iterable[Pair], digests: Mapping[str, str], key: str) -> dict[Pair, str]:
    """For each pair what its matches depend on: both files (photo name -> digest) and the matcher's key."""
    return {(a, b): text_digest("\n".join([digests[a], digests[b], key])) for a, b in pairs}
