"""Which of the exact search's matches the guided one has too, pair by pair.

    python tools/compare_searches.py HPATCHES_FOLDER

One view a pair, default settings; pairs of a folder in HPatches' layout and the bundled ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import coam
from coam import samples
from coam.evaluation.benchmarks.hpatches import load_hpatches


def main(folder: Path) -> None:
    """Print a line a pair: matches of the exact search, and the share of them that guided search has."""
    stereo, yard = samples.motorcycle(), samples.courtyard()
    pairs = [(pair.name, pair.image0, pair.image1) for pair in load_hpatches(folder)]
    pairs.append(("motorcycle", stereo.left, stereo.right))
    pairs.append(("courtyard, day and night", yard.image("day_04"), yard.image("night_02")))
    exact = coam.load_matcher(looks="once", search="exact")
    guided = exact.variant(search="guided")
    for name, image0, image1 in pairs:
        found = [matcher.match(image0, image1) for matcher in (exact, guided)]
        ids = [set(zip(m.ids0.tolist(), m.ids1.tolist(), strict=True)) for m in found]
        print(f"{name:28}{len(ids[0]):6}{len(ids[0] & ids[1]) / max(1, len(ids[0])):8.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
