"""Whole pairs on a CUDA device: agreement with float32, times of stages, throughput, kernels by time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import coam
from benchmarks.gpu_timing import Row, measure, profile_graphs, say
from coam.backends.batches import decode_pairs, split_encoded
from coam.backends.cuda_graphs import GraphedNetwork
from coam.matching.dense import Candidates, DenseMatching, matching_for
from coam.matching.settings import MatcherConfig
from coam.models.registry import load_model

SETTINGS = MatcherConfig(refinement="fine", max_matches=2000)
BATCH = 16
PAIRS = 64
SAME_IN_HALF_PRECISION, SAME_IN_GRAPHS = 0.985, 0.998  # least share of equal matches
PHOTOS = Path(coam.__file__).parent / "samples"
PHOTO_NAMES = [
    "courtyard/images/day_04.jpg",
    "courtyard/images/night_02.jpg",
    "motorcycle/left.jpg",
    "motorcycle/right.jpg",
]


def photos(names: list[str], size: int, device: torch.device) -> list[Tensor]:
    """Bundled photos as (1, 3, size, size) in [0, 1]."""
    arrays = [np.asarray(Image.open(PHOTOS / n).convert("RGB").resize((size, size))) for n in names]
    return [torch.from_numpy(a.copy()).to(device).permute(2, 0, 1)[None].float() / 255 for a in arrays]


def measure_pairs(model_file: str, size: int, device: torch.device) -> list[Row]:
    """Agreement with float32, then times of stages, cold, cached and batched pairs, and of a finer grid."""
    file = load_model(model_file)
    images = photos(PHOTO_NAMES, size, device)
    couples = [(images[0], images[1]), (images[2], images[3])]
    matching = DenseMatching(SETTINGS, file.model.logit_scale.item())
    plain = file.model.to(device).eval()
    half = GraphedNetwork(file.model, device)
    graphed = matching_for(matching.config, matching.logit_scale, device)
    rows: list[Row] = []
    for which, (a, b) in enumerate(couples):
        expected = matching.between(*plain.decode(plain.encode(a), plain.encode(b)))
        dense = half.decode(half.encode(a), half.encode(b))
        step_by_step = matching.between(*dense)
        for _ in range(4):  # as it comes, then recorded
            at_once = graphed.between(*dense)
        rows.append(checked("float16", which, step_by_step, expected, SAME_IN_HALF_PRECISION))
        rows.append(checked("matching as one graph", which, at_once, step_by_step, SAME_IN_GRAPHS))
        say(f"{rows[-2]}\n{rows[-1]}")

    def eager() -> Candidates:
        with torch.autocast("cuda", torch.bfloat16):
            described = plain.decode(*map(plain.encode, couples[1]))
        return matching.between(*described)

    stages = {"eager, bfloat16 autocast, cold": eager, **stages_of(half, matching, graphed, couples[1])}
    rows += [measure(name, action, size=size) for name, action in stages.items()]
    rows.append(throughput(half, graphed, images))
    rows += whole_matcher(size, device)
    rows.append({"peak_mib": torch.cuda.max_memory_allocated() / 2**20})
    say(str(rows[-1]))
    return rows


def checked(what: str, pair: int, found: Candidates, expected: Candidates, least_same: float) -> Row:
    """How well two ways agree on a pair, and whether that is enough."""
    row = {"what": what, "pair": pair, **agreement(found, expected)}
    return row | {"passed": row["same"] >= least_same}


def stages_of(
    network: GraphedNetwork, matching: DenseMatching, graphed: DenseMatching, couple: tuple[Tensor, Tensor]
) -> dict[str, Callable[[], Any]]:
    """The stages of matching two images, and pairs that are made of them."""
    a, b = couple
    first, second = network.encode(a), network.encode(b)
    dense = network.decode(first, second)
    finer = replace(matching.config, grid=256)
    with_grid = matching_for(finer, matching.logit_scale, network.device)

    def cold() -> None:
        both = split_encoded(network.encode(torch.cat([a, b])))
        to_host(graphed.between(*network.decode(both[0], both[1])))

    return {
        "encode one": lambda: network.encode(a),
        "encode both": lambda: network.encode(torch.cat([a, b])),
        "decode": lambda: network.decode(first, second),
        "match, step by step": lambda: matching.between(*dense),
        "match": lambda: graphed.between(*dense),
        "pair, cached": lambda: to_host(graphed.between(*network.decode(first, second))),
        "pair, cold": cold,
        "pair, cached, grid 256": lambda: to_host(with_grid.between(*network.decode(first, second))),
    }


def profile_pairs(model_file: str, size: int, device: torch.device) -> list[Row]:
    """Kernels of encoding two photos, of decoding and of matching them."""
    file = load_model(model_file)
    a, b = photos(PHOTO_NAMES[2:], size, device)
    both = torch.cat([a, b])
    network = GraphedNetwork(file.model, device)
    matching = matching_for(SETTINGS, file.model.logit_scale.item(), device)
    finer = matching_for(replace(SETTINGS, grid=256), matching.logit_scale, device)
    first, second = network.encode(a), network.encode(b)
    dense = network.decode(first, second)
    graphs: dict[str, Callable[[], Any]] = {
        "encode both": lambda: network.encode(both),
        "decode": lambda: network.decode(first, second),
        "match": lambda: matching.between(*dense),
        "match, grid 256": lambda: finer.between(*dense),
    }
    return profile_graphs(graphs)


def whole_matcher(size: int, device: torch.device) -> list[Row]:
    """What users call: arrays in, `Matches` in original pixels out, with one look and with all."""
    rows = []
    arrays = [np.asarray(Image.open(PHOTOS / name).convert("RGB")) for name in PHOTO_NAMES]
    for looks in ("once", "search"):
        matcher = coam.load_matcher(device=str(device), resolution=size, looks=looks)
        for which in (0, 2):
            a, b = arrays[which], arrays[which + 1]
            rows.append(measure("Matcher.match", partial(matcher.match, a, b), looks=looks, pair=which // 2))
    return rows


def to_host(found: Candidates) -> list[np.ndarray]:
    """What a caller gets: arrays."""
    tensors = (found.points0, found.points1, found.score, found.index0, found.index1)
    return [tensor.cpu().numpy() for tensor in tensors]


def agreement(found: Candidates, expected: Candidates) -> Row:
    """Share of the expected grid pairs that were found, and how far the refined points of those moved."""
    keys = {(int(i), int(j)): k for k, (i, j) in enumerate(zip(found.index0, found.index1, strict=True))}
    both = [
        (keys[(int(i), int(j))], k)
        for k, (i, j) in enumerate(zip(expected.index0, expected.index1, strict=True))
        if (int(i), int(j)) in keys
    ]
    ours, theirs = (torch.tensor([pair[n] for pair in both], dtype=torch.int64) for n in (0, 1))
    moved = (found.points1.cpu()[ours] - expected.points1.cpu()[theirs]).norm(dim=1)
    return {
        "found": len(found.score),
        "expected": len(expected.score),
        "same": len(both) / max(len(expected.score), 1),
        "median_moved_px": float(moved.median()) if len(moved) else 0.0,
    }


def throughput(network: GraphedNetwork, matching: DenseMatching, images: list[Tensor]) -> Row:
    """Pairs a second when many pairs share images: encoded once, decoded in batches."""
    encoded = split_encoded(network.encode(torch.cat(images * (BATCH // len(images)))))
    chosen = [(encoded[k % BATCH], encoded[(k + 2) % BATCH]) for k in range(PAIRS)]

    def run() -> None:
        batches = (decode_pairs(network, chosen[start : start + BATCH]) for start in range(0, PAIRS, BATCH))
        for found in matching.between_many(chain.from_iterable(batches)):
            to_host(found)

    seconds = []
    for _ in range(4):  # as they come, then recorded
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    row = {"what": f"{PAIRS} pairs in batches of {BATCH}", "pairs_per_second": PAIRS / min(seconds)}
    say(str(row))
    return row
