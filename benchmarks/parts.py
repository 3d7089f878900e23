"""What `benchmarks.speed` measures, part by part; each runs in a process of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.from_files import from_files
from benchmarks.timing import Row, measure

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"model": "cdunet-lite1", "preset": "default"},
    "paper": {"model": "cdunet-paper", "preset": "paper"},
    "paper, EfficientNet-B1": {"model": "cdunet-paper-b1", "preset": "paper"},
}
POSITIONS = 128 * 128
LOGIT_SCALE = 40.0  # of the dual softmax
KEYPOINTS = 2048  # of the peers; as many as we keep matches
SIZES = (256, 384, 512, 768, 1024, 2048)
GRIDS = (64, 128, 192)
Options = argparse.Namespace


def search(options: Options) -> Iterator[Row]:
    """The search alone, on random descriptors; the first row is the reference of all ratios."""
    from coam.matching.mutual import dual_softmax_nearest, mutual_nearest

    a, b = random_units(POSITIONS, 0), random_units(POSITIONS, 1)
    stages: dict[str, Callable[[], Any]] = {
        "reference: matrix product, 128^2 a side": lambda: product_in_panels(a, b),
        "two argmax passes over chunks": lambda: two_argmax_passes(a, b),
        "mutual_nearest": lambda: mutual_nearest(a, b),
        "dual_softmax_nearest": lambda: dual_softmax_nearest(a, b, LOGIT_SCALE),
    }
    for stage, action in stages.items():
        yield measure("search", stage, action, options.repeats)
    if options.large:
        a, b = random_units(4 * POSITIONS, 2), random_units(4 * POSITIONS, 3)
        stage = "dual_softmax_nearest, 256^2 a side"
        yield measure("search", stage, lambda: dual_softmax_nearest(a, b, LOGIT_SCALE), 1)


def preset(name: str, options: Options) -> Iterator[Row]:
    """Encode, decode, match and whole pairs of one preset on the CPU, one look each."""
    import coam

    matcher = coam.load_matcher(device="cpu", resolution=options.size, looks="once", **PRESETS[name])
    image0, image1 = sample_images(options.size)
    with torch.inference_mode():
        first, second = matcher.prepare(image0), matcher.prepare(image1)
        dense = matcher.describe(first, second)
        stages: dict[str, Callable[[], Any]] = {
            "encode one image": lambda: matcher.prepare(image0),
            "decode a pair": lambda: matcher.describe(first, second),
            "match (sample, search, refine)": lambda: matcher.matching.between(*dense),
            "pair, features at hand": lambda: matcher.match(first, second),
            "pair, from pixels": lambda: matcher.match(image0, image1),
        }
        for stage, action in stages.items():
            yield measure(name, stage, action, options.repeats)


def backends(options: Options) -> Iterator[Row]:
    """The default network by every backend."""
    from coam.backends import open_network
    from coam.models.registry import load_model

    model = load_model().model
    image = torch.from_numpy(sample_images(options.size)[0].copy()).permute(2, 0, 1)[None] / 255
    for name in ("plain", "float32", "bfloat16", "onnxruntime", "openvino"):
        absent = missing("onnx", name) if name in ("onnxruntime", "openvino") else []
        if absent:
            yield not_installed("backends", name, absent)
            continue
        network = open_network(model, torch.device("cpu"), name)
        with torch.inference_mode():
            encoded = network.encode(image)
            stages: dict[str, Callable[[], Any]] = {
                "encode one image": lambda n=network: n.encode(image),
                "decode a pair": lambda n=network, e=encoded: n.decode(e, e),
            }
            for stage, action in stages.items():
                yield measure("backends", f"{name}, {stage}", action, options.repeats)


def peers(options: Options) -> Iterator[Row]:
    """Whole pairs of others at the same size; networks of kornia with random weights."""
    import cv2

    images = sample_images(options.size)
    grey = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in images]
    sift = cv2.SIFT_create(KEYPOINTS)

    def match_sift() -> Any:
        found = [sift.detectAndCompute(image, None)[1] for image in grey]
        return cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(*found)

    yield measure("peers", f"SIFT, {KEYPOINTS} keypoints, mutual (OpenCV)", match_sift, options.repeats)
    stages = (f"XFeat, {KEYPOINTS} keypoints, mutual", f"LightGlue alone, {KEYPOINTS} keypoints given")
    if missing("kornia"):
        yield from (not_installed("peers", stage, ["kornia"]) for stage in stages)
        return
    from kornia.feature import LightGlue, XFeat

    tensors = [torch.from_numpy(image.copy()).permute(2, 0, 1)[None] / 255 for image in images]
    torch.manual_seed(0)
    xfeat = XFeat(top_k=KEYPOINTS, detection_threshold=-1.0).eval()

    def match_xfeat() -> Any:
        found = [xfeat.detectAndCompute(tensor)[0]["descriptors"] for tensor in tensors]
        similarity = found[0] @ found[1].t()
        return similarity.argmax(0)[similarity.argmax(1)]

    glue = LightGlue(None, input_dim=128, depth_confidence=-1, width_confidence=-1).eval()
    keypoints = torch.rand(1, KEYPOINTS, 2) * options.size
    side = {"keypoints": keypoints, "descriptors": torch.randn(1, KEYPOINTS, 128)}
    side["image_size"] = torch.tensor([[options.size, options.size]])
    with torch.inference_mode():
        yield measure("peers", stages[0], match_xfeat, options.repeats)
        yield measure("peers", stages[1], lambda: glue({"image0": side, "image1": side}), options.repeats)


def many(options: Options) -> Iterator[Row]:
    """`match_many` on a fifth, half and all of a sequence: each photo with the next and the one after it."""
    import coam

    matcher = coam.load_matcher(device="cpu", resolution=options.size, looks="once", cached_images=4)
    photos = sequence(options.images, options.size)

    def run(count: int, pairs: list[tuple[int, int]]) -> None:
        with torch.inference_mode():
            prepared = [matcher.prepare(image) for image in photos[:count]]
        for _ in matcher.match_many((prepared[i], prepared[j]) for i, j in pairs):
            pass

    run(2, [(0, 1)])
    for count in sorted({max(2, len(photos) // 5), max(2, len(photos) // 2), len(photos)}):
        pairs = [(i, j) for i in range(count) for j in (i + 1, i + 2) if j < count]
        stage = f"match_many, {count} photos, {len(pairs)} pairs"
        row = measure("many", stage, lambda c=count, p=pairs: run(c, p), 1, warm_up=False)
        each = {f"{time}_per_pair": row[time] / len(pairs) for time in ("seconds", "cpu_seconds")}
        yield row | {"pairs": len(pairs)} | each


def growth(options: Options) -> Iterator[Row]:
    """A pair with features at hand by size of the photos; what the grid changes in it by size of the grid."""
    import coam

    for size in SIZES:
        matcher = coam.load_matcher(device="cpu", resolution=size, looks="once")
        with torch.inference_mode():
            first, second = (matcher.prepare(image) for image in sample_images(size))
            stage = f"pair, features at hand, {size} px"
            yield measure("growth", stage, lambda m=matcher, a=first, b=second: m.match(a, b), 1)
    for grid in GRIDS:
        matcher = coam.load_matcher(device="cpu", resolution=options.size, looks="once", grid=grid)
        with torch.inference_mode():
            dense = matcher.describe(*sample_images(options.size))
            stage = f"match (sample, search, refine), grid {grid}^2"
            yield measure("growth", stage, lambda m=matcher, d=dense: m.matching.between(*d), 1)


def missing(*packages: str) -> list[str]:
    """Which of these cannot be imported."""
    return [package for package in packages if find_spec(package) is None]


def not_installed(part: str, stage: str, packages: list[str]) -> Row:
    """The row of what could not be measured, so that the table shows the gap."""
    return {"part": part, "stage": stage, "note": f"not installed: {', '.join(packages)}"}


PARTS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "search": search,
    **{name: lambda options, name=name: preset(name, options) for name in PRESETS},
    "backends": backends,
    "pairs": lambda options: from_files(options.repeats, options.photos),
    "peers": peers,
    "many": many,
    "growth": growth,
}


def sample_images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The bundled real pair at size x size."""
    from coam import samples

    pair = samples.motorcycle()
    return read(pair.left, size), read(pair.right, size)


def sequence(count: int, size: int) -> list[np.ndarray]:
    """So many photos of one place: the bundled courtyard, again and again with other light."""
    from coam import samples

    yard = samples.courtyard()
    photos = [read(path, size) for path in (*yard.day, *yard.night)]
    return [np.uint8(photos[k % 16] * (1 - 0.1 * (k // 16))) for k in range(count)]


def read(path: Path, size: int) -> np.ndarray:
    """A photo (size, size, 3) uint8."""
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB").resize((size, size)))


def random_units(count: int, seed: int) -> torch.Tensor:
    """Random unit descriptors (count, 64)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, 64, generator=generator), dim=1)


def product_in_panels(a: torch.Tensor, b: torch.Tensor) -> None:
    """All similarities, thrown away panel by panel."""
    out = torch.empty(256, len(b))
    for rows in a.split(256):
        torch.mm(rows, b.t(), out=out)


def two_argmax_passes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The obvious way: best column of every row, best row of every column, compare."""
    forward = torch.cat([(rows @ b.t()).argmax(1) for rows in a.split(1024)])
    backward = torch.cat([(rows @ a.t()).argmax(1) for rows in b.split(1024)])
    return torch.nonzero(backward[forward] == torch.arange(len(a)))
