"""The probability of `coam register` that a result is right: fitted to pairs with truth and to wrong pairs.

    python tools/make_registration_pairs.py TRAINING OUT
    python tools/registration_table.py DATA TABLE --groups ALIGNED_VAL
    python tools/calibrate_registration.py OUT --on TABLE

Each pair of OUT/pairs is a true one, whose landmarks decide whether the registration is right; matches are
in OUT/eval. Its first image with the second image of another place of the same kind is a wrong one; their
matches are kept in OUT/calibration. Prints FOUND (right ones against wrong pairs) and HOLDS (true pairs,
right ones against others) of `coam.registration.quality` fitted anew, and how often the probability is right
on pairs left out of the fit (by scene, five parts), and as it is in the package.

It also prints the lowest limit that at most 1 % of the wrong ones left out of the fit pass.

--on: pairs that nothing was fitted to; what the probability of the package is worth on them goes, with the
line of the left-out ones, to docs/results/registration-confidence.json, and what passes other limits to
registration-limits.json; then: make docs-tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from docs_tables import RESULTS, Result, markdown
from logistic_regression import logistic_regression, probability

from coam import __version__
from coam.evaluation.benchmarks.registration import REGISTRATION, load_registration
from coam.evaluation.matchers.by_name import MatcherSpec, find_matcher
from coam.evaluation.pairs import EvaluationPair, limit_pairs
from coam.evaluation.predictions import PredictionStore, predict
from coam.geometry.homography import fit_homography, transfer_errors
from coam.progress import progress
from coam.registration.fitting import fit_transform
from coam.registration.quality import (
    FOUND,
    FOUND_BY,
    HOLDS,
    HOLDS_BY,
    SURE,
    found_by,
    holds_by,
    judge,
    right_within,
)
from coam.types import Matches

RIDGE = 0.3  # of the weights of standardised features: some pairs are told apart perfectly
# More of a feature makes a registration more or less likely right, whatever few pairs of the others say
SIGNS = {
    "log_inliers": 1,
    "inlier_share": 1,
    "coverage": 1,
    "same_place": 1,
    "against": -1,
    "uncertainty": -1,
}
WHO = ("right ones", "wrong ones")  # as in columns
WRONG = "wrong"  # the kind of wrong pairs
PASSING = 0.01  # share of the wrong ones, left out of the fit, that may pass the limit of the package
LIMITS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)  # that the second table tells of
# Kinds whose pairs all show the same place
ONE_PLACE = ("courtyard", "courtyard-day", "courtyard-night", "day_night", "world")
MARKED_BY_HAND = "dev_multimodal"  # marks may be wrong themselves: see `coam eval registration`


@dataclass(frozen=True)
class Judged:
    """One pair: what the probability is computed from, and whether the registration is right."""

    name: str
    kind: str
    scene: str
    found_by: np.ndarray | None  # (F,) of `FOUND_BY`; None: there is no transform
    holds_by: np.ndarray | None  # (G,) of `HOLDS_BY`
    error: float  # mean miss of the landmarks, pixels; inf: of a wrong pair
    right: bool


def wrong_pairs(pairs: list[EvaluationPair]) -> list[EvaluationPair]:
    """Every pair's first image with the second one of the next pair of its kind."""
    kinds: dict[str, list[EvaluationPair]] = {}
    for pair in pairs:
        kinds.setdefault(pair.subsets[-1], []).append(pair)
    return [
        EvaluationPair(f"{a.name}--{b.name}", a.image0, b.image1, sequence=a.name, subsets=(WRONG,))
        for kind, members in kinds.items()
        if kind not in ONE_PLACE and len(members) > 1
        for a, b in zip(members, members[1:] + members[:1], strict=True)
    ]


def matched(pairs: list[EvaluationPair], spec: MatcherSpec, folder: Path) -> Iterator[Matches]:
    """Matches of pairs, of which a folder of `coam eval registration` may hold some."""
    store = PredictionStore(folder, spec.identity | {"benchmark": REGISTRATION.name})
    with progress("matches", len(pairs), unit="pairs") as bar:
        predict(pairs, spec, store, progress=bar.advance)
    return store.read(pairs)


def judged(pair: EvaluationPair, matches: Matches) -> Judged:
    """The registration of one pair, by the fit that `coam register` begins with."""
    kind = pair.subsets[-1] if MARKED_BY_HAND not in pair.subsets else MARKED_BY_HAND
    fit = fit_transform(matches.points0, matches.points1, matches.size1)
    if fit is None:
        return Judged(pair.name, kind, pair.sequence, None, None, np.inf, False)
    both = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    sizes = matches.size0, matches.size1
    quality = judge(fit, *both, sizes, matches.overlap)
    values = np.array(found_by(quality)), np.array(holds_by(quality))
    if pair.correspondences is None:
        return Judged(pair.name, kind, pair.sequence, *values, np.inf, False)
    marks = pair.correspondences[:, :2], pair.correspondences[:, 2:]
    error = float(np.linalg.norm(fit.transform.points(marks[0]) - marks[1], axis=1).mean())
    bearable = right_within(matches.size1)
    ideal = fit_homography(*marks) if kind == MARKED_BY_HAND else None
    if ideal is not None:
        bearable = max(bearable, 2 * float(transfer_errors(*marks, ideal).mean()))
    return Judged(pair.name, kind, pair.sequence, *values, error, error <= bearable)


def fit_both(rows: list[Judged]) -> tuple[np.ndarray, np.ndarray]:
    """FOUND and HOLDS of `coam.registration.quality`: weights, then the bias."""
    there = [row for row in rows if row.found_by is not None]
    place = [row for row in there if row.right or row.kind == WRONG]
    whole = [row for row in there if row.kind != WRONG]
    found = []
    for some, names, values in (
        (place, FOUND_BY, [row.found_by for row in place]),
        (whole, HOLDS_BY, [row.holds_by for row in whole]),
    ):
        right = np.array([float(row.right) for row in some])
        signs = [SIGNS[name] for name in names]
        weights, bias = logistic_regression(np.array(values), right, np.ones(len(right)), RIDGE, signs)
        found.append(np.append(weights, bias))
    return found[0], found[1]


def probabilities(rows: list[Judged], found: np.ndarray, holds: np.ndarray) -> np.ndarray:
    """(N,) that each row is right; 0 without a transform."""
    return np.array(
        [
            0.0
            if row.found_by is None or row.holds_by is None
            else probability(found[:-1] @ row.found_by + found[-1])
            * probability(holds[:-1] @ row.holds_by + holds[-1])
            for row in rows
        ]
    )


def left_out(rows: list[Judged]) -> np.ndarray:
    """The probability (N,) of each row by a fit without its fifth of the scenes."""
    numbers = {scene: index % 5 for index, scene in enumerate(dict.fromkeys(row.scene for row in rows))}
    part = np.array([numbers[row.scene] for row in rows])
    found = np.zeros(len(rows))
    for fold in range(5):
        fitted = fit_both([row for row, other in zip(rows, part != fold, strict=True) if other])
        asked = [row for row, here in zip(rows, part == fold, strict=True) if here]
        found[part == fold] = probabilities(asked, *fitted)
    return found


def as_shipped(rows: list[Judged]) -> np.ndarray:
    """The probability (N,) of each row by the package."""
    return probabilities(rows, np.array(FOUND), np.array(HOLDS))


def lowest_limit(found: np.ndarray, right: np.ndarray, passing: float = PASSING) -> float:
    """The lowest limit on probabilities (N,), in hundredths, that at most a share `passing` of those that are
    not `right` (N,) reach.
    """
    wrong = np.sort(found[~right])[::-1]
    bearable = int(passing * len(wrong))
    if bearable >= len(wrong):
        return 0.0
    return (np.floor(100 * wrong[bearable]) + 1) / 100


def accepted(rows: list[Judged], found: np.ndarray, limit: float) -> list[str]:
    """How many of the right and of the wrong ones reach a limit."""
    right, sure = np.array([row.right for row in rows]), found >= limit
    return [f"{int((sure & some).sum())} of {int(some.sum())}" for some in (right, ~right)]


def told(name: str, rows: list[Judged], found: np.ndarray) -> list[str]:
    """A row of the table: how many are right and wrong, and how many of each are accepted."""
    brier = np.mean((found - np.array([row.right for row in rows])) ** 2)
    return [name, str(len(rows)), *accepted(rows, found, SURE), f"{float(brier):.3f}"]


def by_kind(name: str, rows: list[Judged], found: np.ndarray) -> list[list[str]]:
    """`told` of all rows and of each kind."""
    kinds = dict.fromkeys(row.kind for row in rows)
    table = [told(name, rows, found)]
    for kind in kinds:
        some = [index for index, row in enumerate(rows) if row.kind == kind]
        table.append(told(f"{name}: {kind}", [rows[i] for i in some], found[some]))
    return table


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--on", type=Path, help="OUT of registration_table.py: pairs nothing was fitted to")
    parser.add_argument("-m", "--matcher", default="cdunet-lite1", help="a name or a .safetensors file")
    parser.add_argument("--limit", type=int, default=48, help="at most so many wrong pairs")
    parser.add_argument(
        "--right", nargs="*", default=[], help="names A--B of wrong pairs that are right after all"
    )
    options = parser.parse_args()
    spec = find_matcher(options.matcher)
    true = load_registration(options.out / "pairs")
    wrong = limit_pairs([pair for pair in wrong_pairs(true) if pair.name not in options.right], options.limit)
    found = [
        *zip(true, matched(true, spec, options.out / "eval" / spec.name), strict=True),
        *zip(wrong, matched(wrong, spec, options.out / "calibration"), strict=True),
    ]
    rows = [judged(pair, matches) for pair, matches in found]
    fitted = fit_both(rows)
    for name, by, weights in (("FOUND", FOUND_BY, fitted[0]), ("HOLDS", HOLDS_BY, fitted[1])):
        print(f"{name} = {tuple(round(float(w), 2) for w in weights)}  # {', '.join(by)}, bias")
    kept = left_out(rows)
    right = np.array([row.right for row in rows])
    print(f"at most {PASSING:.0%} of the wrong ones left out pass {lowest_limit(kept, right):.2f}")
    table = by_kind("left out of the fit", rows, kept)
    for line in (*table, *by_kind("as in the package", rows, as_shipped(rows))):
        print(" | ".join(line))
    _print_sure_and_wrong(rows, kept)
    if options.on is None:
        return
    pairs = load_registration(options.on / "pairs")
    others = [
        judged(pair, matches)
        for pair, matches in zip(pairs, matched(pairs, spec, options.on / "eval" / spec.name), strict=True)
    ]
    shipped = as_shipped(others)
    _print_sure_and_wrong(others, shipped)
    columns = ["pairs", "how many", *(f"{who} accepted" for who in WHO), "Brier score"]
    command = f"python tools/calibrate_registration.py OUT --on TABLE --limit {options.limit}"
    ours = {spec.name: spec.model_hash}
    lines = [table[0], *by_kind("the table's", others, shipped)]
    result = Result(command, __version__, ours, columns, lines)
    columns = ["limit", *(f"{who} accepted, {of}" for of in ("left out", "the table's") for who in WHO)]
    lines = [
        [f"{limit:g}", *accepted(rows, kept, limit), *accepted(others, shipped, limit)] for limit in LIMITS
    ]
    limits = Result(command, __version__, ours, columns, lines)
    for name, each in (("registration-confidence", result), ("registration-limits", limits)):
        each.save(RESULTS / f"{name}.json")
        print(markdown(each))


def _print_sure_and_wrong(rows: list[Judged], found: np.ndarray) -> None:
    for row, value in zip(rows, found, strict=True):
        if value >= SURE and not row.right:
            print(f"sure and wrong: {row.name}: {value:.2f}, {row.error:.1f} px")


if __name__ == "__main__":
    main()
