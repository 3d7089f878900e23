"""Learned matchers of others, through kornia, if their weights are on this machine; nothing is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coam.errors import ConfigError, WeightsError, import_extra
from coam.evaluation.matchers.baselines import FeatureMatcher, Features
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec, keypoint_matches
from coam.images import load_image
from coam.images.resize import as_tensor
from coam.tensors import as_array
from coam.types import Matches, PairMatcher, Size


@dataclass(frozen=True)
class Peer:
    """What is needed to run somebody else's matcher."""

    files: dict[str, str]  # file name in torch hub's checkpoint folder -> where its authors publish it
    licence: str
    build: Callable[[torch.device, int], PairMatcher]
    default_keypoints: int


def peer_spec(name: str, device: str, options: dict[str, Any]) -> MatcherSpec:
    """The spec of a peer; WeightsError with what to get, and where it goes, when a file is missing."""
    import_extra("kornia", "peers")
    peer = PEERS[name]
    if set(options) - {"max_matches"}:
        raise ConfigError(
            f"{name} takes only --max-matches (its number of keypoints), not {', '.join(options)}"
        )
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for file, source in peer.files.items():
        if not (folder / file).is_file():
            raise WeightsError(
                f"{name} needs {file} in torch/hub/checkpoints of your cache, and coam downloads nothing: "
                f"get it from {source} ({peer.licence})"
            )
    keypoints = int(options.get("max_matches", peer.default_keypoints))
    digest = hashlib.sha256(b"".join((folder / file).read_bytes() for file in peer.files)).hexdigest()
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    config = {"max_keypoints": keypoints, "device": str(where)}
    return MatcherSpec(name, config, lambda: peer.build(where, keypoints), digest, peer.licence)


def _photo(path: Path, device: torch.device) -> tuple[Tensor, Size]:
    """Photo (1, 3, H, W) in [0, 1] and its size (width, height)."""
    loaded = load_image(path)
    return as_tensor(loaded.rgb).to(device), loaded.size


def _detector(describe: Callable[[Tensor], Any], device: torch.device) -> Callable[[Path], Features]:
    """Features of a photo (1, 3, H, W) by a network: `describe` gives a list of one result.

    A result has `keypoints` (N, 2) and `descriptors` (N, D), as attributes or in a dictionary.
    """

    @torch.inference_mode()
    def detect(path: Path) -> Features:
        image, size = _photo(path, device)
        found = describe(image)[0]
        read = found.__getitem__ if isinstance(found, dict) else partial(getattr, found)
        return Features(as_array(read("keypoints")), as_array(read("descriptors")), size)

    return detect


def disk_matcher(model: Any, device: torch.device, keypoints: int) -> FeatureMatcher:
    """DISK by mutual nearest neighbours."""
    describe = partial(model, n=keypoints, pad_if_not_divisible=True)
    return FeatureMatcher(_detector(describe, device), ratio=None)


def xfeat_matcher(model: Any, device: torch.device) -> FeatureMatcher:
    """XFeat's sparse features by mutual nearest neighbours."""
    return FeatureMatcher(_detector(model.detectAndCompute, device), ratio=None)


def _build_disk(device: torch.device, keypoints: int) -> PairMatcher:
    from kornia.feature import DISK

    return disk_matcher(DISK.from_pretrained("depth").to(device).eval(), device, keypoints)


def _build_xfeat(device: torch.device, keypoints: int) -> PairMatcher:
    from kornia.feature import XFeat

    return xfeat_matcher(XFeat.from_pretrained(top_k=keypoints).to(device).eval(), device)


class LightGlueOnAliked(FeatureMatcher):
    """ALIKED keypoints, once per photo, and LightGlue per pair."""

    def __init__(self, detector: Any, matcher: Any, device: torch.device) -> None:
        super().__init__(_detector(detector, device), ratio=None)
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


def _build_aliked_lightglue(device: torch.device, keypoints: int) -> PairMatcher:
    from kornia.feature import ALIKED, LightGlue

    detector = ALIKED.from_pretrained("aliked-n16", max_num_keypoints=keypoints).to(device).eval()
    return LightGlueOnAliked(detector, LightGlue("aliked").to(device).eval(), device)


class LoftrMatcher(FunctionMatcher):
    """LoFTR at a long side of 840 px, as its authors evaluate it outdoors; matches in original pixels."""

    def __init__(self, model: Any, device: torch.device, max_matches: int, long_side: int = 840) -> None:
        super().__init__(self._match)
        self.model, self.device, self.max_matches, self.long_side = model, device, max_matches, long_side

    def _grey(self, path: Path) -> tuple[Tensor, tuple[int, int], tuple[float, float]]:
        image, size = _photo(path, self.device)
        factor = self.long_side / max(size)
        width, height = (max(8, round(side * factor / 8) * 8) for side in size)
        grey = (image * image.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
        resized = torch.nn.functional.interpolate(grey, (height, width), mode="bilinear", antialias=True)
        return resized, size, (size[0] / width, size[1] / height)

    @torch.inference_mode()
    def _match(self, path0: Path, path1: Path) -> Matches:
        (image0, size0, back0), (image1, size1, back1) = self._grey(path0), self._grey(path1)
        found = self.model({"image0": image0, "image1": image1})
        scores = as_array(found["confidence"])
        order = np.argsort(-scores, kind="stable")[: self.max_matches]
        # LoFTR's pixel centres are at +0.5 (kornia's documentation): scale, then take off the half pixel.
        points0 = (as_array(found["keypoints0"])[order] * back0 - 0.5).astype(np.float32)
        points1 = (as_array(found["keypoints1"])[order] * back1 - 0.5).astype(np.float32)
        return keypoint_matches(points0, points1, scores[order], size0, size1)


def _build_loftr(device: torch.device, keypoints: int) -> PairMatcher:
    from kornia.feature import LoFTR

    return LoftrMatcher(LoFTR("outdoor").to(device).eval(), device, keypoints)


PEERS: dict[str, Peer] = {
    "disk": Peer({"depth-save.pth": "github.com/cvlab-epfl/disk"}, "Apache-2.0", _build_disk, 2048),
    "aliked+lightglue": Peer(
        {
            "aliked-n16.pth": "github.com/Shiaoming/ALIKED",
            "aliked_lightglue_v0-1_arxiv-pth": "github.com/cvg/LightGlue",
        },
        "ALIKED BSD-3-Clause, LightGlue Apache-2.0",
        _build_aliked_lightglue,
        1024,
    ),
    "loftr": Peer({"loftr_outdoor.ckpt": "github.com/zju3dv/LoFTR"}, "Apache-2.0", _build_loftr, 10_000),
    "xfeat": Peer({"xfeat.pt": "github.com/verlab/accelerated_features"}, "Apache-2.0", _build_xfeat, 4096),
}
