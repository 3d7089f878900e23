"""Correspondences between two photos of one place when light, season, viewpoint or material have changed.

    import coam
    matches = coam.match("a.jpg", "b.jpg")
    matches.points0, matches.points1, matches.scores

Heavy modules are imported on first use, so `import coam` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coam.matcher import CoAM, Matcher, load_matcher, match
    from coam.registration import Registration, RegistrationRefused, register
    from coam.types import Grid, Match, Matches
    from coam.warp import Warp

__version__ = "0.1.0"
__all__ = [
    "CoAM", "Grid", "Match", "Matcher", "Matches", "Registration", "RegistrationRefused", "Warp",
    "__version__", "load_matcher", "match", "register",
]  # fmt: skip

_HOMES = {
    "match": "coam.matcher",
    "load_matcher": "coam.matcher",
    "Matcher": "coam.matcher",
    "CoAM": "coam.matcher",
    "Match": "coam.types",
    "Matches": "coam.types",
    "Grid": "coam.types",
    "Warp": "coam.warp",
    "register": "coam.registration",
    "Registration": "coam.registration",
    "RegistrationRefused": "coam.registration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'coam' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
