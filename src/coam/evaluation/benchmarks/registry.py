"""The benchmarks by name: a new one is a file that declares a `Benchmark`, and one line here."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from coam.errors import ConfigError

if TYPE_CHECKING:
    from coam.evaluation.runner import Benchmark


@dataclass(frozen=True)
class Entry:
    """Where a benchmark is declared. Nothing heavy is imported until it is asked for."""

    place: str  # "module:ATTRIBUTE"
    help: str  # one line for `coam eval --help`


# In the order of the help page.
BENCHMARKS: dict[str, Entry] = {
    "hpatches": Entry(
        "coam.evaluation.benchmarks.hpatches:HPATCHES",
        "Planar scenes: MMA at 1 .. 10 px and homography AUC (D2-Net and LoFTR protocols).",
    ),
    "posed-pairs": Entry(
        "coam.evaluation.benchmarks.posed_pairs:POSED_PAIRS",
        "Relative pose on pairs with known pose (YFCC100M, ScanNet): AUC, mAP, accuracy by angle.",
    ),
    "megadepth": Entry(
        "coam.evaluation.benchmarks.megadepth:MEGADEPTH",
        "Relative pose on MegaDepth: the 1500 pairs of LoFTR, or easy / medium / hard of CAPS.",
    ),
    "wxbs": Entry(
        "coam.evaluation.benchmarks.wxbs:WXBS",
        "Hand-clicked points under changes of light, season and sensor: epipolar recall.",
    ),
    "wxbs-warp": Entry(
        "coam.evaluation.benchmarks.wxbs:WXBS_WARP",
        "The same points sent through the dense warp: share that arrives (PCK).",
    ),
    "evd": Entry(
        "coam.evaluation.benchmarks.evd:EVD",
        "Extreme viewpoints of planes: error of the homography over the part that both photos show.",
    ),
    "pair-score": Entry(
        "coam.evaluation.benchmarks.pair_score:PAIR_SCORE",
        "Does the score know which photos overlap? ROC and calibration.",
    ),
    "invariance": Entry(
        "coam.evaluation.benchmarks.invariance:INVARIANCE",
        "How much descriptors change with the light, looking at the other photo and alone.",
    ),
    "warp": Entry(
        "coam.evaluation.benchmarks.warp:WARP",
        "Dense warps against dense truth: within 1 and 3 px, hidden places, calibration of the certainty.",
    ),
    "registration": Entry(
        "coam.evaluation.benchmarks.registration:REGISTRATION",
        "One image laid onto another, across sensors: landmark error, AUC at 5 and 10 px, false certainty.",
    ),
    "stylization": Entry(
        "coam.stylization.evaluation:STYLIZATION",
        "Colours of another photo, L1 to the truth: simple baselines, warp only, both stages, your stylizer.",
    ),
    "sfm": Entry(
        "coam.evaluation.benchmarks.sfm:SFM",
        "Reconstruction: the five figures of the paper's tables, ours against SIFT in one run.",
    ),
    "localization": Entry(
        "coam.evaluation.benchmarks.localization:LOCALIZATION",
        "Locate queries of known pose among photos of known pose: share within 0.25 m / 2 deg and so on.",
    ),
    "aachen": Entry(
        "coam.evaluation.benchmarks.localization:AACHEN",
        "Aachen Day-Night v1.0 and v1.1: triangulate, locate, write the submission of the evaluation server.",
    ),
}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name."""
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    benchmark: Benchmark = resolve_name(BENCHMARKS[name].place)
    if benchmark.name != name:
        raise ConfigError(f"{BENCHMARKS[name].place} is named {benchmark.name!r}, but registered as {name!r}")
    return benchmark
