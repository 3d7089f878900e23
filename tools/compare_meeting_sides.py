"""Matches and processor time by the side at which large photos meet (`StackedConfig.meeting_side`).

    python tools/compare_meeting_sides.py SIDE SIDE ... [--resolution 800] [--homographies DIR ...]
        [--posed DIR] [--pairs N] [--looks once]

Without sub-pixel alignment, one thread. For each side the share of matches within 1, 3 and
10 px of the truth (of the epipolar line) with the difference to the first side pair by pair and its 95 %
interval, and processor seconds to decode and match; as a Markdown table.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from coam.evaluation.benchmarks.hpatches import load_hpatches, match_errors_hpatches
from coam.evaluation.benchmarks.posed_pairs import load_posed_pairs, match_errors_pose
from coam.evaluation.pairs import limit_pairs
from coam.matcher import load_matcher


def main() -> None:
    """Measure the sides in turn on every pair, then print the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sides", type=int, nargs="+")
    parser.add_argument("--resolution", type=int, default=800)
    parser.add_argument("--homographies", type=Path, nargs="*", default=[], help="in HPatches' layout")
    parser.add_argument("--posed", type=Path, help="as `coam eval posed-pairs` takes it")
    parser.add_argument("--pairs", type=int, help="so many of each folder, evenly chosen")
    parser.add_argument("--looks", default="once", help="as of `coam match`")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    matchers = []
    for side in arguments.sides:
        matcher = load_matcher(
            device="cpu", looks=arguments.looks, alignment="none", resolution=arguments.resolution
        )
        network = matcher.network.model  # type: ignore[attr-defined]
        network.config = replace(network.config, meeting_side=side)
        matchers.append(matcher)
    posed = [] if arguments.posed is None else [(arguments.posed, load_posed_pairs, match_errors_pose)]
    planes = [(root, load_hpatches, match_errors_hpatches) for root in arguments.homographies]
    limits = (1, 3, 10)
    lines = [["", "pairs", "meeting at", *(f"within {limit} px" for limit in limits), "processor seconds"]]
    for root, load, errors_of in [*planes, *posed]:
        figures = []
        for pair in limit_pairs(load(root), arguments.pairs):
            row = []
            for matcher in matchers:
                photos = matcher.prepare(pair.image0), matcher.prepare(pair.image1)
                start = time.process_time()
                matches = matcher.match(*photos)
                seconds = time.process_time() - start
                errors = np.asarray(errors_of(pair, matches))
                row.append([*((errors < limit).mean() if len(errors) else 0.0 for limit in limits), seconds])
            figures.append(row)
            print(pair.name, np.round(row, 3).tolist(), file=sys.stderr, flush=True)
        table = np.asarray(figures)  # (pairs, sides, figures)
        change = table - table[:, :1]
        around = 1.96 * change.std(axis=0) / len(table) ** 0.5
        for number, side in enumerate(arguments.sides):
            shares = [f"{share:.3f}" for share in table[:, number, :-1].mean(axis=0)]
            if number:
                moved = zip(shares, change.mean(axis=0)[number], around[number], strict=False)
                shares = [f"{share} ({by:+.3f} +- {margin:.3f})" for share, by, margin in moved]
            seconds = f"{table[:, number, -1].mean():.2f}"
            lines.append([root.name, str(len(table)), f"{side} px", *shares, seconds])
    lines.insert(1, ["---"] * len(lines[0]))
    print("\n".join("| " + " | ".join(line) + " |" for line in lines))


if __name__ == "__main__":
    main()
