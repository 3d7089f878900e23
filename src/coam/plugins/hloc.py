"""coam as a matcher of hloc, dense and sparse: `register()`, or copy this file to hloc/matchers/coam.py.

Dense, with keypoints of its own or assigned to those of a detector (`features_ref`):

    from coam.plugins.hloc import DENSE, register
    register()
    features, matches = hloc.match_dense.main(DENSE, pairs, images, export_dir=outputs, max_kps=8192)

Sparse, on keypoints of any detector. hloc hands only features to a sparse matcher, and coam describes a
keypoint while looking at the other photo, so the photos travel in the features file (`add_photos`):

    features = hloc.extract_features.main(conf, images, outputs)
    add_photos(features, images)
    hloc.match_features.main(SPARSE, pairs, features, matches=outputs / "matches.h5")
"""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from hloc.utils.base_model import BaseModel
from hloc.utils.io import read_image
from PIL import Image
from torch import Tensor

import coam
from coam.geometry.coordinates import resize_points
from coam.images import load_image

NAME = "coam"
PHOTO = "photo"  # data set beside `keypoints` in a features file: the bytes of a JPEG
DENSE: dict[str, Any] = {
    "output": "matches-coam",
    "model": {"name": NAME, "resolution": 640},
    # hloc resizes photos before a matcher sees them; a multiple of 32 is what the network works at.
    "preprocessing": {"grayscale": False, "resize_max": 1024, "dfactor": 32},
    "max_error": 2,  # pixels within which matches of several pairs are one keypoint
    "cell_size": 4,  # pixels: at most one keypoint in a cell
}
SPARSE: dict[str, Any] = {"output": "matches-coam-sparse", "model": {"name": NAME, "resolution": 640}}


class CoAM(BaseModel):  # type: ignore[misc]
    """hloc's interface: images in, matches of their own out; or keypoints in, their indices out."""

    default_conf = {  # noqa: RUF012
        "model": "cdunet-lite1",
        "resolution": 640,  # long side at which photos are matched
        "max_matches": 4096,
        "min_score": 0.001,
        "device": "auto",
        "looks": "once",  # positions that all pairs share; "align" or "search" for single hard pairs
    }
    required_inputs: list[str] = []  # noqa: RUF012

    def _init(self, conf: dict[str, Any]) -> None:
        names = ("resolution", "max_matches", "min_score", "looks")
        settings = {name: conf[name] for name in names}
        self.matcher = coam.load_matcher(conf["model"], conf["device"], **settings)

    def _forward(self, data: dict[str, Any]) -> dict[str, Tensor]:
        """Dense: image0, image1 (1, 3, H, W) -> keypoints0, keypoints1 (N, 2), scores (N,), in their pixels.

        Sparse: keypoints0 (1, N, 2), ... -> matches0 (1, N), -1 where there is none, matching_scores0 (1, N).
        """
        if "keypoints0" in data:
            return self._match_keypoints(data)
        image0, image1 = (data[name][0].clamp(0, 1) for name in ("image0", "image1"))
        found = self.matcher.match(image0, image1)
        place = data["image0"].device
        arrays = {"keypoints0": found.points0, "keypoints1": found.points1, "scores": found.scores}
        return {name: torch.from_numpy(array).to(place) for name, array in arrays.items()}

    def _match_keypoints(self, data: dict[str, Any]) -> dict[str, Tensor]:
        photos = [_decoded(data, side) for side in (0, 1)]
        points = [_in_photo(data, side, photo.size) for side, photo in enumerate(photos)]
        found = self.matcher.match(*photos, *points)
        index0, index1 = torch.from_numpy(found.ids0), torch.from_numpy(found.ids1)
        matches = torch.full((1, len(points[0])), -1, dtype=torch.int64)
        scores = torch.zeros(1, len(points[0]))
        matches[0, index0] = index1
        scores[0, index0] = torch.from_numpy(found.scores)
        return {"matches0": matches, "matching_scores0": scores}


def _decoded(data: dict[str, Any], side: int) -> Any:
    """The photo that travels with features."""
    name = f"{PHOTO}{side}"
    if name not in data:
        raise KeyError(f"the features have no data set {PHOTO!r}; add it: coam.plugins.hloc.add_photos")
    return load_image(data[name][0].cpu().numpy().astype(np.uint8).tobytes())


def _in_photo(data: dict[str, Any], side: int, size: tuple[int, int]) -> Tensor:
    """Keypoints (N, 2) of the original photo, in pixels of the one that travels."""
    width, height = (float(value) for value in data[f"image_size{side}"][0])
    points = data[f"keypoints{side}"][0].cpu().float()
    moved: Tensor = resize_points(points, (size[0] / width, size[1] / height))
    return moved


def add_photos(features: str | Path, images: str | Path, long_side: int = 1024, quality: int = 95) -> int:
    """Put the photos below `images` beside their keypoints in hloc's features .h5; gives their number.

    Each is shrunk to `long_side` and kept as a JPEG of some 200 kB. Those that are there stay as they are.
    """
    added = 0
    with h5py.File(features, "a") as file:
        places: list[str] = []
        file.visit(places.append)  # names may hold slashes
        for name in [place.removesuffix("/keypoints") for place in places if place.endswith("/keypoints")]:
            if PHOTO in file[name]:
                continue
            # hloc's own reader: whether it turns photos upright depends on its version.
            picture = Image.fromarray(np.ascontiguousarray(read_image(Path(images) / name)))
            size = picture.size
            picture.thumbnail((long_side, long_side), Image.Resampling.LANCZOS)
            content = io.BytesIO()
            picture.save(content, "JPEG", quality=quality, subsampling=0)
            bytes_of: npt.NDArray[np.uint8] = np.frombuffer(content.getvalue(), np.uint8)
            file[name].create_dataset(PHOTO, data=bytes_of)
            if "image_size" not in file[name]:
                file[name].create_dataset("image_size", data=np.array(size))
            added += 1
    return added


def register() -> None:
    """Make hloc find the matcher "coam": its loader wants a class that was defined in hloc.matchers.coam."""
    place = f"hloc.matchers.{NAME}"
    if place in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(place, __file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[place] = module
    spec.loader.exec_module(module)
