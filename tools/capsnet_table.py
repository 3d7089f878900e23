"""The paper's second experiment as one table: CAPSNet against C and C+F, on pairs that training never saw.

    python tools/capsnet_table.py RUNS --scenes fox=MODEL=PHOTOS ... --pose DIR --homography DIR -o OUT

RUNS holds capsnet/, capsnet-c/ and capsnet-cf/ with a model.safetensors each (tools/train_capsnet.py).
Figures: share of pairs with rotation and translation error below 10 degrees in the grades easy, medium, hard
(SIFT keypoints described by the network, mutual nearest neighbours, essential matrix by USAC_MAGSAC, as the
paper does with plain RANSAC); MMA on planar pairs with the dense grid; how much descriptors change with the
light. Intervals are 95 % bootstrap intervals over first photos (pairs with a photo in common rise and fall
together); differences to the baseline are paired. A finished report is not made again. --also cdunet-lite1
sets other models beside them, measured alike. Needs no more than torch, OpenCV and PIL, so it runs where the
training ran.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from make_posed_benchmark import GRADES, LISTING, parse_scene, write_held_out

from coam.errors import CoamError, ConfigError, DataError
from coam.evaluation.benchmarks.hpatches import HPATCHES, load_hpatches
from coam.evaluation.benchmarks.invariance import INVARIANCE, load_invariance, measure_invariance
from coam.evaluation.benchmarks.posed_pairs import POSED_PAIRS, load_posed_pairs
from coam.evaluation.matchers.by_name import MatcherSpec, spec_of
from coam.evaluation.matchers.keypoints import on_sift_keypoints
from coam.evaluation.metrics.tables import Row, json_ready
from coam.evaluation.pairs import EvaluationPair, limit_pairs
from coam.evaluation.reports.compare import compare_reports
from coam.evaluation.runner import REPORT, Benchmark, build_report, read_report, write_json

VARIANTS = {"capsnet": "CAPSNet", "capsnet-c": "C CoAM", "capsnet-cf": "C+F CoAM"}
# Rotation / translation below 10 degrees on MegaDepth, easy, medium, hard: the paper's table.
PAPER = {
    "capsnet": ("91.3 / 52.7", "82.5 / 57.9", "65.8 / 61.3"),
    "capsnet-c": ("91.7 / 52.1", "82.9 / 58.6", "69.3 / 62.4"),
    "capsnet-cf": ("91.9 / 52.3", "82.8 / 58.4", "68.8 / 63.4"),
}
POSE_FIGURES = ("rotation acc@10", "translation acc@10")
MMA_FIGURES = ("MMA@1", "MMA@3", "MMA@5", "MMA@10")


@dataclass(frozen=True)
class Settings:
    """What is measured on what."""

    pose: tuple[Path, ...] = ()  # folders with pairs_with_gt.txt
    homography: Path | None = None  # folder in HPatches layout
    resolution: int = 640  # long side at which the network sees a photo
    max_keypoints: int = 2048  # SIFT keypoints of a photo
    limit: int | None = None  # at most so many pairs of each kind
    resamples: int = 1000
    device: str = "auto"


def measure(models: dict[str, Path | str], settings: Settings, output: Path) -> dict[str, dict[str, Any]]:
    """model -> benchmark -> report; written below `output`, and taken from there if it is finished."""
    from coam.matcher import load_matcher

    reports: dict[str, dict[str, Any]] = {}
    for name, path in models.items():
        matcher = load_matcher(path, settings.device, resolution=settings.resolution, min_score=0.0)
        reports[name] = {}
        if settings.pose:
            # CAPS's protocol: all mutual nearest neighbours of the keypoints, from one look.
            plain = matcher.variant(looks="once", min_distinctiveness=0.0)
            spec = on_sift_keypoints(spec_of(plain, name), settings.max_keypoints)
            pairs = [pair for root in settings.pose for pair in _pairs_of(root)]
            reports[name]["pose"] = _run(POSED_PAIRS, pairs, spec, output / name / "pose", settings)
        if settings.homography is not None:
            planar = load_hpatches(settings.homography)
            spec = spec_of(matcher, name)
            reports[name]["homography"] = _run(HPATCHES, planar, spec, output / name / "homography", settings)
            reports[name]["invariance"] = _invariance(matcher, name, settings, output / name / "invariance")
    return reports


def _pairs_of(root: Path) -> list[EvaluationPair]:
    """Pairs of a list; the first photo is the unit of the bootstrap, because scenes are too few for one."""
    return [
        replace(pair, name=f"{root.name}/{pair.name}", sequence=f"{pair.sequence}/{pair.image0.name}")
        for pair in load_posed_pairs(root)
    ]


def _run(
    benchmark: Benchmark,
    pairs: Sequence[EvaluationPair],
    spec: MatcherSpec,
    folder: Path,
    settings: Settings,
) -> dict[str, Any]:
    chosen = limit_pairs(pairs, settings.limit)
    if is_finished(folder, chosen, spec):
        return read_report(folder)
    photos = [(pair.image0, pair.image1) for pair in chosen]
    rows = []
    for pair, matches in zip(chosen, spec.create().match_many(photos), strict=True):
        rows.append(benchmark.score_pair(pair, matches, benchmark.settings))
        _dot()
    return _report(benchmark, chosen, rows, spec, folder, settings)


def is_finished(folder: Path, pairs: Sequence[EvaluationPair], spec: MatcherSpec) -> bool:
    """Whether `folder` holds the report of this matcher on these pairs."""
    if not (folder / REPORT).is_file():
        return False
    report = read_report(folder)
    same_matcher = report["matcher"]["model_hash"] == spec.model_hash
    same_settings = report["matcher"]["config"] == json_ready(spec.config)
    return same_matcher and same_settings and [p["name"] for p in report["pairs"]] == [p.name for p in pairs]


def _report(
    benchmark: Benchmark,
    pairs: Sequence[EvaluationPair],
    rows: Sequence[Row],
    spec: MatcherSpec,
    folder: Path,
    settings: Settings,
) -> dict[str, Any]:
    report = build_report(
        benchmark, pairs, rows, spec, benchmark.settings, available=len(pairs), resamples=settings.resamples
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / REPORT, report)
    return read_report(folder)


def _invariance(matcher: Any, name: str, settings: Settings, folder: Path) -> dict[str, Any]:
    assert settings.homography is not None
    pairs, spec = limit_pairs(load_invariance(settings.homography), settings.limit), spec_of(matcher, name)
    if is_finished(folder, pairs, spec):
        return read_report(folder)
    rows = []
    for row in measure_invariance(matcher, pairs):
        rows.append(row)
        _dot()
    return _report(INVARIANCE, pairs, rows, spec, folder, settings)


def _dot() -> None:
    print(".", end="", file=sys.stderr, flush=True)


# ---- tables


def markdown(reports: dict[str, dict[str, Any]], output: Path | None = None) -> str:
    """The tables; with `output`, also the paired differences to the baseline from the reports there."""
    parts = [pose_table(reports)]
    if any("homography" in entry for entry in reports.values()):
        parts.append(planar_table(reports))
    if output is not None:
        parts.append(differences(reports, output))
    return "\n\n".join(part for part in parts if part) + "\n"


def _labels(reports: dict[str, dict[str, Any]]) -> dict[str, str]:
    """name -> label of each row: the variants, whether measured or not, then other models that were."""
    return VARIANTS | {name: name for name in reports if name not in VARIANTS}


def pose_table(reports: dict[str, dict[str, Any]]) -> str:
    """Rotation / translation accuracy by grade, ours beside the paper's; what was not measured says so."""
    head = "| variant | " + " | ".join(f"{grade}, paper | {grade}, ours" for grade in GRADES) + " |"
    lines = [head, "|" + "---|" * (1 + 2 * len(GRADES))]
    for name, label in _labels(reports).items():
        cells = []
        for grade, published in zip(GRADES, PAPER.get(name, ["-"] * len(GRADES)), strict=True):
            cells += [published, _pose_cell(reports.get(name, {}).get("pose"), grade)]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _pose_cell(report: dict[str, Any] | None, grade: str) -> str:
    if report is None:
        return "not trained yet"
    table = report["tables"].get(grade)
    if table is None:
        return "no such pairs"
    values = " / ".join(_percent(table[figure]) for figure in POSE_FIGURES)
    return f"{values} ({table['pairs']['value']:.0f} pairs)"


def _percent(entry: dict[str, Any]) -> str:
    """91.3 [88.0, 94.1]"""
    value = f"{100 * entry['value']:.1f}"
    low, high = entry["low"], entry["high"]
    if low is None or high is None or low != low or high != high:
        return value
    return f"{value} [{100 * low:.1f}, {100 * high:.1f}]"


def planar_table(reports: dict[str, dict[str, Any]]) -> str:
    """MMA on planar pairs, and how much descriptors change with the light (mean, std over positions).

    "without conditioning": the same weights, each photo looking at itself instead of at the other.
    """
    head = [*MMA_FIGURES, "matches", "L1 change with light", "without conditioning", "cosine"]
    head += ["without conditioning"]
    lines = ["| variant | " + " | ".join(head) + " |", "|" + "---|" * (1 + len(head))]
    for name, label in _labels(reports).items():
        entry = reports.get(name, {})
        if "homography" not in entry:
            lines.append(f"| {label} | " + " | ".join(["not trained yet"] * len(head)) + " |")
            continue
        table, light = entry["homography"]["tables"]["all"], entry["invariance"]["tables"]["all"]
        cells = [_percent(table[figure]) for figure in MMA_FIGURES]
        cells += [f"{table['matches']['value']:.0f}"]
        cells += [
            _light_cell(light, f"{key} {how}") for key in ("L1", "cosine") for how in ("conditioned", "alone")
        ]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _light_cell(table: dict[str, Any], figure: str) -> str:
    """6.199 +- 1.304; what a report does not hold is left out."""
    if figure not in table:
        return "-"
    deviation = table.get(f"std of {figure}")
    return f"{table[figure]['value']:.3f}" + (f" ± {deviation['value']:.3f}" if deviation else "")


def differences(reports: dict[str, dict[str, Any]], output: Path) -> str:
    """Variant minus baseline on the same pairs, and whether the interval leaves out zero."""
    if "pose" not in reports.get("capsnet", {}):
        return ""
    lines = ["| minus CAPSNet | figure | " + " | ".join(GRADES) + " |", "|" + "---|" * (2 + len(GRADES))]
    for name, label in _labels(reports).items():
        if name == "capsnet" or "pose" not in reports.get(name, {}):
            continue
        baseline, other = (read_report(output / model / "pose") for model in ("capsnet", name))
        compared = compare_reports(POSED_PAIRS, baseline, other)["tables"]
        for figure in POSE_FIGURES:
            cells = [_difference_cell(compared.get(grade, {}).get(figure)) for grade in GRADES]
            lines.append(f"| {label} | {figure} | " + " | ".join(cells) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _difference_cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "no such pairs"
    gap = entry["difference"]
    verdict = ", too few" if entry["too_few"] else "" if entry["significant"] else ", not settled"
    return f"{100 * gap['value']:+.1f} [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]{verdict}"


# ---- command


def find_models(runs: Path, also: Sequence[str] = ()) -> dict[str, Path | str]:
    """The trained variants below a folder, NAME/model.safetensors or NAME.safetensors, and others by name.

    `also` holds names of models or .safetensors files, which are called by their stem.
    """
    found: dict[str, Path | str] = {}
    for name in VARIANTS:
        for path in (runs / name / "model.safetensors", runs / f"{name}.safetensors"):
            if path.is_file():
                found.setdefault(name, path)
    if not found:
        raise DataError(f"{runs} holds none of {', '.join(VARIANTS)}; train them: tools/train_capsnet.py")
    for model in also:
        name = Path(model).stem if model.endswith(".safetensors") else model
        if name in VARIANTS or name in found:
            raise ConfigError(f"--also {model}: a row is called {name} already; give the file another name")
        found[name] = model
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when done, 2 when the input is at fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--scenes", nargs="*", default=[], help="NAME=MODEL=PHOTOS of held-out photo sets")
    parser.add_argument("--pose", nargs="*", type=Path, default=[], help="folders with pairs_with_gt.txt")
    parser.add_argument("--homography", type=Path, help="folder in HPatches layout")
    parser.add_argument("--also", nargs="*", default=[], help="further models: names or .safetensors files")
    parser.add_argument("--per-grade", type=int, default=40, help="pairs of each scene and grade")
    parser.add_argument("--resolution", type=int, default=640)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        models = find_models(options.runs, options.also)
        pose = tuple(options.pose)
        held_out = options.output / "held_out"
        if options.scenes:
            if not (held_out / LISTING).exists():
                print(write_held_out(dict(map(parse_scene, options.scenes)), held_out, options.per_grade))
            pose = (held_out, *pose)
        settings = Settings(
            pose, options.homography, options.resolution, limit=options.limit, device=options.device
        )
        reports = measure(models, settings, options.output)
    except CoamError as error:
        print(error, file=sys.stderr)
        return 2
    text = markdown(reports, options.output)
    (options.output / "table.md").write_text(text)
    print(f"\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
