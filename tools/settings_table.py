"""What single settings of the matching are worth: tables of docs/reproduce.md and docs/capsnet.md.

    python tools/settings_table.py DEV_HOMOGRAPHY OUT      # OUT keeps the matches; a killed run goes on

Prints two tables, of cdunet-lite1 and of capsnet-cf: one look at 512 px, viewpoint pairs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from docs_tables import table_text

from coam.evaluation.benchmarks.hpatches import HPATCHES, load_hpatches
from coam.evaluation.matchers.by_name import find_matcher
from coam.evaluation.runner import evaluate

COMMON: dict[str, Any] = {"resolution": 512, "looks": "once", "search": "exact"}
SETTINGS: dict[str, dict[str, Any]] = {
    "default (`refinement=fine`, `ranking=dual_softmax`, 128 x 128 positions)": {},
    "`refinement=quadratic`": {"refinement": "quadratic"},
    "`refinement=paper` (3 x 3)": {"refinement": "paper"},
    "`refinement=none`": {"refinement": "none"},
    "`ranking=paper` (eq. 2)": {"ranking": "paper"},
    "`ranking=similarity` (eq. 2 without the score)": {"ranking": "similarity"},
    "`search=guided`": {"search": "guided"},
    "`grid=256`": {"grid": 256},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "both levels together, all positions (`search=exact`)": {},
    "both levels together, guided (`search=guided`, the default)": {"search": "guided"},
    "coarse to fine, as in the paper (`search=coarse_to_fine`)": {"search": "coarse_to_fine"},
}
SHOWN = ("MMA@1", "MMA@3", "MMA@5", "MMA@10")


def table(model: str, settings: dict[str, dict[str, Any]], root: Path, out: Path) -> str:
    """MMA and matches of the viewpoint pairs with each of the settings."""
    pairs = [pair for pair in load_hpatches(root) if "viewpoint" in pair.subsets]
    rows = []
    for number, (name, changed) in enumerate(settings.items()):
        spec = find_matcher(model, device="cpu", **{**COMMON, **changed})
        figures = evaluate(HPATCHES, pairs, spec, out / f"{model}-{number}", resamples=0)["tables"]["all"]
        cells = [f"{figures[key]['value']:.3f}" for key in SHOWN]
        rows.append([name, *cells, f"{figures['matches']['value']:.0f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    return table_text([f"{model}, {len(pairs)} viewpoint pairs", *SHOWN, "matches"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    for model, settings in (("cdunet-lite1", SETTINGS), ("capsnet-cf", SEARCHES)):
        print(table(model, settings, options.root, options.out) + "\n")


if __name__ == "__main__":
    main()
