"""Anything that matches, behind one face, found by what a user types after --matcher.

cdunet-lite1, path/to/model.safetensors     ours; keypoints="sift": describes SIFT keypoints, else its grid
sift, rootsift, orb                         OpenCV
disk, aliked+lightglue, loftr, xfeat        kornia or vismatch, if their weights are on this machine
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
from typing import Any, Protocol

from coam.errors import ConfigError
from coam.types import Matches

PathPair = tuple[Path, Path]
OPENCV = ("sift", "rootsift", "orb")


class PairMatcher(Protocol):
    """What evaluation needs of a matcher."""

    def match_many(self, pairs: Iterable[PathPair]) -> Iterable[Matches]:
        """Matches of each pair of image paths, in order."""
        ...


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
        for path0, path1 in pairs:
            yield self.function(path0, path1)


def find_matcher(name: str, *, device: str = "auto", **options: Any) -> MatcherSpec:
    """The matcher behind a name; options that are None are left to the matcher's defaults."""
    chosen = {key: value for key, value in options.items() if value is not None}
    if ":" in name and not Path(name).exists():
        return _plugged_in(name, chosen)
    lower = name.lower()
    if lower in OPENCV:
        return _opencv(lower, chosen)
    from coam.evaluation.peers import PEERS, peer_spec
    from coam.models.registry import MODELS

    if lower in PEERS:
        return peer_spec(lower, device, chosen)
    if name not in MODELS and Path(name).suffix != ".safetensors":
        raise ConfigError(
            f"there is no matcher {name!r}; choose one of {', '.join((*MODELS, *OPENCV, *PEERS))}, "
            "a .safetensors file or package.module:function"
        )
    if "keypoints" in chosen:
        return _ours_on_keypoints(name, device, chosen)
    return _ours(name, device, chosen)


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
    return settings, file.sha256 or _hash_of_state(matcher.model)


def _hash_of_state(model: Any) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _ours(name: str, device: str, options: dict[str, Any]) -> MatcherSpec:
    from coam.matcher import load_matcher

    first = load_matcher(name, device=device, **options)
    config, model_hash = _describe(first)
    spare: list[PairMatcher] = [first]

    def create() -> PairMatcher:
        return spare.pop() if spare else load_matcher(name, device=device, **options)

    short = Path(name).stem if name.endswith(".safetensors") else name
    return MatcherSpec(short, config, create, model_hash)


def _ours_on_keypoints(name: str, device: str, options: dict[str, Any]) -> MatcherSpec:
    """Our model in CAPSNet's protocol; max_matches limits keypoints, as it does for other detectors."""
    from coam.evaluation.keypoint_matcher import MAX_KEYPOINTS, on_sift_keypoints

    others = {key: value for key, value in options.items() if key not in ("keypoints", "max_matches")}
    if options["keypoints"] != "sift":
        raise ConfigError(f"keypoints {options['keypoints']!r} are not known; choose sift, or leave it out")
    return on_sift_keypoints(_ours(name, device, others), int(options.get("max_matches", MAX_KEYPOINTS)))


def _opencv(name: str, options: dict[str, Any]) -> MatcherSpec:
    from coam.evaluation.baselines import orb_matcher, sift_matcher

    _refuse_unknown(name, options, ("max_matches", "ratio"))
    # --max-matches limits keypoints here, as every paper does with detectors: matches are what is left of
    # them.
    keypoints, ratio = int(options.get("max_matches", 4096)), float(options.get("ratio", 0.8))
    config = {"max_keypoints": keypoints, "ratio": ratio, "mutual": True}
    if name == "orb":
        return MatcherSpec(name, config, lambda: orb_matcher(ratio=ratio, max_keypoints=keypoints))
    root = name == "rootsift"
    return MatcherSpec(name, config, lambda: sift_matcher(root=root, ratio=ratio, max_keypoints=keypoints))


def _refuse_unknown(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option in options:
        if option not in known:
            raise ConfigError(f"{name} has no option {option!r}; it takes {', '.join(known)}")


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
