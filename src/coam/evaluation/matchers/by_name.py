"""Matchers by name: whatever a user types after --matcher, as a `MatcherSpec`.

cdunet-lite1, path/to/model.safetensors     ours; coam: the default model
coam+sift, cdunet-lite1+sift                ours on SIFT keypoints of both photos; or keypoints="sift"
sift, rootsift, orb                         OpenCV
aliked+lightglue, disk+lightglue, disk,     trained models of others, with the extra peers
xfeat, xfeat+lighterglue
loftr                                       the same, if its weights are on this machine
phase-correlation, ecc, mutual-information  registration by intensities, with the extra intensities
package.module:function                     your own: function(path0, path1) -> Matches, or a function without
                                            arguments that returns an object with match_many(pairs)
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from coam.errors import ConfigError
from coam.types import FloatArray, Matches, PairMatcher, Size

PathPair = tuple[Path, Path]
ON_SIFT = "+sift"  # behind the name of one of our models

# Matchers that are not our networks: name -> "module:function", imported when asked for. The function gives
# the spec: function(name, device, options) -> MatcherSpec.
MATCHERS: dict[str, str] = {
    "sift": "coam.evaluation.matchers.baselines:opencv_spec",
    "rootsift": "coam.evaluation.matchers.baselines:opencv_spec",
    "orb": "coam.evaluation.matchers.baselines:opencv_spec",
    "aliked+lightglue": "coam.evaluation.matchers.peers:peer_spec",
    "disk+lightglue": "coam.evaluation.matchers.peers:peer_spec",
    "disk": "coam.evaluation.matchers.peers:peer_spec",
    "xfeat": "coam.evaluation.matchers.peers:peer_spec",
    "xfeat+lighterglue": "coam.evaluation.matchers.peers:peer_spec",
    "loftr": "coam.evaluation.matchers.peers:peer_spec",
    "phase-correlation": "coam.evaluation.matchers.intensities:intensity_spec",
    "ecc": "coam.evaluation.matchers.intensities:intensity_spec",
    "mutual-information": "coam.evaluation.matchers.intensities:intensity_spec",
}


@dataclass(frozen=True)
class MatcherSpec:
    """A matcher that can be made any number of times, with all that its results depend on."""

    name: str  # short, for tables and folders
    config: dict[str, Any]  # JSON values; results of different configs are never mixed
    create: Callable[[], PairMatcher] = field(compare=False)
    model_hash: str = ""  # SHA-256 of the weights, where there are any
    licence: str = ""  # of weights that are not ours

    @property
    def identity(self) -> dict[str, Any]:
        """What the cache of predictions is labelled with."""
        return {"matcher": self.name, "config": self.config, "model_hash": self.model_hash}


class FunctionMatcher:
    """A function (path0, path1) -> Matches as a `PairMatcher`."""

    def __init__(self, function: Callable[[Path, Path], Matches]) -> None:
        self.function = function

    def match_many(self, pairs: Iterable[PathPair]) -> Iterator[Matches]:
        """Matches of each pair, in order."""
        return (self.function(Path(path0), Path(path1)) for path0, path1 in pairs)


def find_matcher(name: str, *, device: str = "auto", **options: Any) -> MatcherSpec:
    """The matcher behind a name; options that are None are left to the matcher's defaults."""
    chosen = {key: value for key, value in options.items() if value is not None}
    if ":" in name and not Path(name).exists():
        return _plugged_in(name, chosen)
    if name.endswith(ON_SIFT) and name not in MATCHERS:
        name, chosen["keypoints"] = name.removesuffix(ON_SIFT), "sift"
    lower = name.lower()
    if lower in MATCHERS:
        make_spec: Callable[[str, str, dict[str, Any]], MatcherSpec] = resolve_name(MATCHERS[lower])
        return make_spec(lower, device, chosen)
    from coam.models.registry import DEFAULT_MODEL, MODELS

    name = DEFAULT_MODEL if lower == "coam" else name
    if name not in MODELS and Path(name).suffix != ".safetensors":
        raise ConfigError(
            f"there is no matcher {name!r}; choose one of {', '.join((*MODELS, *MATCHERS))}, "
            "a .safetensors file or package.module:function"
        )
    if "keypoints" not in chosen:
        return _ours(name, device, chosen)
    from coam.evaluation.matchers.keypoints import MAX_KEYPOINTS, on_sift_keypoints

    detector = chosen.pop("keypoints")
    if detector != "sift":
        raise ConfigError(f"keypoints {detector!r} are not known; choose sift, or leave it out")
    most = int(chosen.pop("max_matches", MAX_KEYPOINTS))  # limits keypoints, as it does for other detectors
    return on_sift_keypoints(_ours(name, device, chosen), most)


def spec_of(matcher: Any, name: str = "matcher") -> MatcherSpec:
    """A ready object (with match_many, or callable with two paths) as a spec, for use from Python."""
    if isinstance(matcher, MatcherSpec):
        return matcher
    config, model_hash = _describe(matcher)
    return MatcherSpec(name, config, lambda: _as_pair_matcher(matcher, name), model_hash)


def _describe(matcher: Any) -> tuple[dict[str, Any], str]:
    """Settings and weights hash of one of our matchers; nothing is known of a foreign one."""
    config = getattr(matcher, "config", None)
    settings = asdict(config) if config is not None and hasattr(config, "__dataclass_fields__") else {}
    settings.pop("cached_images", None)  # changes speed, not results
    file = getattr(matcher, "file", None)
    if file is None:
        return settings, ""
    settings |= {"model": file.name, "trained": file.trained, "device": str(matcher.device)}
    if file.sha256:
        return settings, file.sha256
    digest = hashlib.sha256()
    for key, value in sorted(matcher.model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().numpy().tobytes())
    return settings, digest.hexdigest()


def _ours(name: str, device: str, options: dict[str, Any]) -> MatcherSpec:
    from coam.matcher import load_matcher

    first = load_matcher(name, device=device, **options)
    config, model_hash = _describe(first)
    spare: list[PairMatcher] = [first]

    def create() -> PairMatcher:
        return spare.pop() if spare else load_matcher(name, device=device, **options)

    short = Path(name).stem if name.endswith(".safetensors") else name
    return MatcherSpec(short, config, create, model_hash)


def _plugged_in(name: str, options: dict[str, Any]) -> MatcherSpec:
    module_name, _, attribute = name.partition(":")
    if options:
        raise ConfigError(
            f"{name} takes no options from here ({', '.join(options)}); set them in your function"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module_name} for --matcher {name}: {error}; is it on PYTHONPATH?"
        ) from error
    target = getattr(module, attribute, None)
    if target is None:
        raise ConfigError(f"{module_name} has no {attribute!r}; --matcher wants package.module:function")
    source = inspect.getsourcefile(module)
    code_hash = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    config = {"plugin": name, "source_sha256": code_hash}
    return MatcherSpec(attribute, config, lambda: _as_pair_matcher(target, name))


def _as_pair_matcher(target: Any, name: str) -> PairMatcher:
    """An object with match_many, a function of two paths, or a function of nothing that makes either."""
    if hasattr(target, "match_many") and not inspect.isclass(target):
        return target  # type: ignore[no-any-return]
    if not callable(target):
        raise ConfigError(
            f"{name} is neither a function (path0, path1) -> Matches nor an object with match_many"
        )
    required = [
        p for p in inspect.signature(target).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    if len(required) == 2:
        return FunctionMatcher(target)
    if not required:
        return _as_pair_matcher(target(), name)
    raise ConfigError(f"{name} takes {len(required)} arguments; wanted function(path0, path1) -> Matches")


def keypoint_matches(
    points0: FloatArray, points1: FloatArray, scores: FloatArray, size0: Size, size1: Size, **more: Any
) -> Matches:
    """Matches between keypoints, which have no grid ids; `more` as in `Matches`."""
    no_ids = np.full(len(scores), -1, dtype=np.int64)
    return Matches(points0, points1, scores, no_ids, no_ids, size0, size1, **more)


def timed_matches(matcher: PairMatcher, pairs: Iterable[PathPair], name: str) -> Iterator[Matches]:
    """Matches of each pair, checked, with the seconds each took in meta["seconds"]."""
    results = iter(matcher.match_many(pairs))
    while True:
        start = time.perf_counter()
        try:
            matches = next(results)
        except StopIteration:
            return
        if not isinstance(matches, Matches):
            raise ConfigError(f"{name} returned a {type(matches).__name__}; it must return coam.Matches")
        yield replace(matches, meta=matches.meta | {"seconds": time.perf_counter() - start})
