"""The interface that hloc publishes for matchers: it is not on PyPI, so tests run against these contracts.

Written from its documented behaviour: `BaseModel` merges `default_conf` with the conf and calls `_init`; a
matcher is found as the one BaseModel that is defined in the module hloc.matchers.NAME; dense matching hands
over images (1, 3, H, W) and scales keypoints back, sparse matching hands over every data set of the features.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from PIL import Image

BASE_MODEL = """
from torch import nn

class BaseModel(nn.Module):
    default_conf = {}
    required_inputs = []

    def __init__(self, conf):
        super().__init__()
        self.conf = {**self.default_conf, **conf}
        self._init(self.conf)

    def forward(self, data):
        for key in self.required_inputs:
            assert key in data, key
        return self._forward(data)
"""


READ_IMAGE = """
import cv2

def read_image(path, grayscale=False):
    image = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return image[:, :, ::-1]
"""


def write_package(root: Path) -> Path:
    """hloc/ with what plug-ins import; gives the folder of matchers."""
    for folder in ("hloc", "hloc/utils", "hloc/matchers"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "hloc" / "utils" / "base_model.py").write_text(BASE_MODEL)
    (root / "hloc" / "utils" / "io.py").write_text(READ_IMAGE)
    return root / "hloc" / "matchers"


def load_matcher(conf: dict[str, Any]) -> Any:
    """The matcher of a conf, found as hloc finds it."""
    place = f"hloc.matchers.{conf['name']}"
    module = importlib.import_module(place)
    base = sys.modules["hloc.utils.base_model"].BaseModel
    classes = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == place]
    (found,) = [kind for kind in classes if issubclass(kind, base)]
    return found(conf).eval()


def match_dense(conf: dict[str, Any], path0: Path, path1: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keypoints (N, 2) of both photos in original pixels, and scores (N,)."""
    model = load_matcher(conf["model"])
    images, scales = zip(
        *(_preprocessed(path, **conf["preprocessing"]) for path in (path0, path1)), strict=True
    )
    found = model({"image0": images[0], "image1": images[1]})
    points = [
        (found[f"keypoints{i}"] + 0.5) * found["keypoints0"].new_tensor(scales[i]) - 0.5 for i in (0, 1)
    ]
    return points[0].cpu().numpy(), points[1].cpu().numpy(), found["scores"].cpu().numpy()


def _preprocessed(path: Path, grayscale: bool, resize_max: int, dfactor: int) -> tuple[torch.Tensor, Any]:
    assert not grayscale
    picture = Image.open(path).convert("RGB")
    size = np.array(picture.size)
    scale = min(1.0, resize_max / max(size))
    new = tuple(int(round(side * scale) // dfactor * dfactor) for side in size)
    pixels = np.asarray(picture.resize(new, Image.Resampling.BOX), np.float32) / 255
    return torch.from_numpy(pixels.transpose(2, 0, 1)[None].copy()), size / np.array(new)


def match_sparse(
    conf: dict[str, Any], features: Path, name0: str, name1: str
) -> tuple[np.ndarray, np.ndarray]:
    """matches0 (N,) and matching_scores0 (N,), as they are written."""
    model = load_matcher(conf["model"])
    data: dict[str, Any] = {}
    with h5py.File(features, "r") as file:
        for side, name in enumerate((name0, name1)):
            for key, value in file[name].items():
                data[f"{key}{side}"] = torch.from_numpy(value.__array__()).float()[None]
            # A sparse matcher gets the size of a photo, not its pixels.
            data[f"image{side}"] = torch.empty((1, 1, *tuple(file[name]["image_size"])[::-1]))
    found = model(data)
    return found["matches0"][0].cpu().short().numpy(), found["matching_scores0"][0].cpu().half().numpy()
