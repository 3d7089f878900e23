"""Pairs of one place and of different places, for the pair score: photos that no training has seen.

    python tools/make_pair_list.py OUT --homographies BENCHMARK --posed POSED [--per-scene 15] [--seed 0]
    coam eval pair-score --root OUT
    python tools/calibrate_pair_score.py WEIGHTS OUT --output WEIGHTS.new

BENCHMARK is what make_aligned_benchmark.py makes (other light, season or sensor, seen through a homography),
POSED what make_posed_benchmark.py makes (other viewpoint). Of different places there are as many pairs, each
within one kind: a webcam with another webcam, a photo of one scene with one of the next scene.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.benchmarks.posed_pairs import load_posed_pairs
from coam.evaluation.pairs import EvaluationPair
from coam.store.atomic import write_text

Labelled = tuple[Path, Path, int]


def crossed(pairs: list[EvaluationPair]) -> list[Labelled]:
    """Each pair, and its first photo with the second one of the next pair of another place."""
    labelled: list[Labelled] = []
    for number, pair in enumerate(pairs):
        others = [*pairs[number + 1 :], *pairs[:number]]
        other = next(other for other in others if place(other.image1) != place(pair.image0))
        labelled += [(pair.image0, pair.image1, 1), (pair.image0, other.image1, 0)]
    return labelled


def place(photo: Path) -> str:
    """A photo's place: the folder in which it lies."""
    return photo.parent.name


def kind(photo: Path) -> str:
    """What varies between the photos of a made sequence: v_KIND_NUMBER."""
    return place(photo).rsplit("_", 1)[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--homographies", type=Path, required=True)
    parser.add_argument("--posed", type=Path, required=True)
    parser.add_argument("--per-scene", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    planes = load_hpatches(options.homographies)
    labelled: list[Labelled] = []
    for name in sorted({kind(pair.image0) for pair in planes}):
        of_kind = [pair for pair in planes if kind(pair.image0) == name]
        labelled += crossed(of_kind) if len(of_kind) > 1 else [(of_kind[0].image0, of_kind[0].image1, 1)]
    posed = load_posed_pairs(options.posed)
    drawn = []
    for scene in sorted({place(pair.image0) for pair in posed}):
        of_scene = [pair for pair in posed if place(pair.image0) == scene]
        drawn += [of_scene[i] for i in rng.permutation(len(of_scene))[: options.per_scene]]
    labelled += crossed(drawn)
    lines = []
    for first, second, label in labelled:
        names = [f"{place(photo)}/{photo.name}" for photo in (first, second)]
        for photo, name in zip((first, second), names, strict=True):
            target = options.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(photo, target)
        lines.append(f"{names[0]} {names[1]} {label}")
    write_text(options.out / "pairs.txt", "\n".join(lines) + "\n")
    same = sum(label for *_, label in labelled)
    print(f"{same} pairs of one place, {len(labelled) - same} of different places in {options.out}")


if __name__ == "__main__":
    main()
