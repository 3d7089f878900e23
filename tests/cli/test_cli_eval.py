"""`coam eval ...` from the command line to the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from coam.cli.eval import benchmark_command, register
from coam.cli.options import require_trained
from coam.errors import CoamError, ConfigError, DataError, WeightsError
from coam.evaluation.benchmarks.hpatches import HPATCHES, load_hpatches
from coam.evaluation.benchmarks.registry import BENCHMARKS, Entry, find_benchmark
from coam.evaluation.reports.compare import compare_reports
from coam.evaluation.reports.text import few_note
from coam.evaluation.runner import measure, read_report
from coam.models.registry import MODELS, build_model, packaged_weights
from coam.training.config import load_recipe
from support import SHARED
from support.simple_matchers import plugged_in


@pytest.fixture
def invoke():
    def run(*arguments: object):
        app = typer.Typer()
        register(app)

        @app.command()
        def nothing() -> None: ...

        result = CliRunner().invoke(app, ["eval", *map(str, arguments)])
        if result.exception is not None and isinstance(result.exception, CoamError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return run


def evaluate(invoke, root: Path, out: Path, matcher: str = "sift") -> dict:
    result = invoke("hpatches", "--root", root, "-m", matcher, "-o", out, "--json")
    return json.loads(result.stdout)["tables"]


def test_hpatches_from_command_to_report(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tables = evaluate(invoke, hpatches_root, out)
    assert tables["all"]["pairs"]["value"] == 7
    assert tables["illumination"]["MMA@3"]["value"] > 0.9
    names = ["predictions.h5", "predictions.json", "report.html", "report.json", "report.md"]
    assert sorted(p.name for p in out.iterdir()) == names
    report = read_report(out)
    assert report["run"]["computed_now"] == 7
    assert report["settings"] == {"estimator": "opencv", "threshold": 3.0}
    assert [point[0] for point in report["curves"]["all"]] == list(range(1, 11))
    assert len(report["pairs"]) == len(report["ranking"]["worst_first"]) == 7


def test_the_page_is_whole_and_tells_nothing_of_this_machine(
    invoke, hpatches_root: Path, tmp_path: Path
) -> None:
    import platform
    import re

    evaluate(invoke, hpatches_root, tmp_path / "out")
    for name in ("report.html", "report.json", "report.md"):
        text = (tmp_path / "out" / name).read_text()
        assert str(tmp_path) not in text
        assert platform.node() not in text or len(platform.node()) < 4
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") >= 3
    assert "<svg" in page
    assert re.findall(r"(?:src|href)=[\"'](?!data:)", page) == []
    assert "http://" not in page
    assert "https://" not in page


def test_the_same_run_twice_computes_nothing_and_says_the_same(
    invoke, hpatches_root: Path, tmp_path: Path
) -> None:
    first = evaluate(invoke, hpatches_root, tmp_path / "out")
    second = evaluate(invoke, hpatches_root, tmp_path / "out")
    assert first == second
    assert read_report(tmp_path / "out")["run"]["computed_now"] == 0


def test_workers_change_nothing(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    first = evaluate(invoke, hpatches_root, tmp_path / "one")
    result = invoke("hpatches", "--root", hpatches_root, "-m", "sift", "-o", tmp_path / "two", "--json",
                    "--workers", 2)  # fmt: skip
    assert json.loads(result.stdout)["tables"] == first


def test_another_estimator_needs_no_new_matches(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    evaluate(invoke, hpatches_root, tmp_path / "out")
    invoke(
        "hpatches", "--root", hpatches_root, "-m", "sift", "-o", tmp_path / "out", "--estimator", "poselib"
    )
    report = read_report(tmp_path / "out")
    assert report["run"]["computed_now"] == 0
    assert report["settings"]["estimator"] == "poselib"


def test_another_matcher_in_the_same_folder_is_refused(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    evaluate(invoke, hpatches_root, tmp_path / "out")
    with pytest.raises(ConfigError, match='"sift" -> "rootsift"'):
        evaluate(invoke, hpatches_root, tmp_path / "out", "rootsift")


def test_a_plugged_in_matcher_runs_from_the_command_line(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    tables = evaluate(invoke, hpatches_root, tmp_path / "out", "support.simple_matchers:plugged_in")
    assert tables["illumination"]["MMA@1"]["value"] == 1.0
    assert tables["viewpoint"]["MMA@1"]["value"] == 0.0
    assert tables["viewpoint"]["MMA@3"]["value"] == 1.0  # shifts of 2 and 3 px


def test_limit_and_default_folder(invoke, hpatches_root: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("hpatches", "--root", hpatches_root, "-m", "sift", "--limit", 2)
    assert "all (2)" in result.stdout
    assert read_report(Path("eval/hpatches/hpatches/sift"))["pairs_available"] == 7


def test_reports_say_which_tables_rest_on_few_sequences(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    result = invoke("hpatches", "--root", hpatches_root, "-m", "sift", "-o", tmp_path / "out")
    note = "fewer than 8 independent sequences, so the intervals say little: "
    note += "all (2), illumination (1), viewpoint (1)"
    assert result.stdout.count(note) == 1
    for name in ("report.md", "report.html"):
        assert (tmp_path / "out" / name).read_text().count(note) == 1
    report = read_report(tmp_path / "out")
    pairs = [pair | {"sequence": str(i), "subsets": []} for i, pair in enumerate(report["pairs"])]
    assert few_note(report | {"pairs": pairs}) != []
    assert few_note(report | {"pairs": [*pairs, pairs[0] | {"sequence": "eighth"}]}) == []


MATCHER = {"matcher", "device", "resolution", "set", "output", "root", "json", "allow-untrained"}
PAIRS = MATCHER | {"limit", "workers", "resume", "max-matches", "preset"}
SCORED = PAIRS | {"estimator", "threshold"}
OPTIONS = {
    "hpatches": SCORED | {"keep-large"},
    "posed-pairs": SCORED | {"keypoints", "pairs"},
    "megadepth": SCORED | {"keypoints", "index"},
    "wxbs": SCORED | {"protocol", "test-only"},
    "wxbs-warp": MATCHER | {"limit", "test-only"},
    "evd": SCORED,
    "pair-score": PAIRS,
    "invariance": MATCHER | {"limit", "preset"},
    "stylization": MATCHER | {"limit", "preset", "stylizer", "weights", "leaks", "scenes", "count"},
    "sfm": MATCHER | {"max-matches", "preset", "sift", "tracks"},
    "localization": MATCHER | {"max-matches", "preset", "map"},
    "aachen": MATCHER | {"max-matches", "preset", "when", "release"},
}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_the_declaration_makes_the_command(name: str) -> None:
    benchmark = find_benchmark(name)
    assert benchmark.name == name
    command = benchmark_command(name)
    assert command.help == BENCHMARKS[name].help
    flags = {flag for option in command.params for flag in option.opts if flag.startswith("--")}
    assert flags == {f"--{flag}" for flag in OPTIONS[name]}
    defaults = {option.name: option.default for option in command.params}
    assert defaults["matcher"] == ["cdunet-lite1"]
    assert defaults.get("max_matches") is None  # the presets fill it
    assert benchmark.filled(defaults | {"root": None}).get("max_matches") == (4096 if benchmark.run else None)


def test_a_model_without_weights_is_not_measured(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    line = ("hpatches", "--root", hpatches_root, "-m", "cdunet-paper", "-o", tmp_path / "out")
    with pytest.raises(WeightsError, match=r"cdunet-paper has no trained weights here.*--allow-untrained"):
        invoke(*line)
    assert not (tmp_path / "out").exists()


def test_the_list_of_benchmarks_imports_none_of_them() -> None:
    code = (
        "import sys; sys.argv = ['coam', 'eval', '--help']\n"
        "from coam.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([n for n in sys.modules if n in ('torch', 'numpy') or n.startswith('coam.evaluation.')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    registry = "coam.evaluation.benchmarks"
    assert lines[-1] == str([registry, f"{registry}.registry"])
    for name in BENCHMARKS:
        assert any(line.strip("│ ").startswith(f"{name} ") for line in lines)


TOY = '''
"""Toy protocol: the share of matches in the left part of photo 0."""
from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.metrics.tables import Metric, mean_of
from coam.evaluation.runner import Benchmark, Option


def load(root, *, sequence):
    return [pair for pair in load_hpatches(root) if sequence in ("", pair.sequence)]


def score(pair, matches, *, part):
    inside = matches.points0[:, 0] < part * matches.size0[0]
    return {"inside": float(inside.mean()), "seen": float(len(matches))}


TOY = Benchmark(
    name="toy",
    load=load,
    options=(Option("sequence", str, "", "Only this sequence."),),
    score=score,
    settings={"part": Option("part", float, 0.5, "Share of the width.")},
    metrics=(Metric("inside", mean_of("inside"), headline=True), Metric("seen", mean_of("seen"), "count")),
    rank_by="inside",
)
'''


def test_a_new_benchmark_is_one_file_and_one_line(
    invoke, hpatches_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_benchmark.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "toy", Entry("toy_benchmark:TOY", "The left half."))
    assert "The left half." in invoke("--help").stdout
    shown = " ".join(invoke("toy", "--help").stdout.replace("│", " ").split())
    assert "Only this sequence." in shown
    options = ("--root", hpatches_root, "-m", "support.simple_matchers:plugged_in", "--sequence", "i_one")
    result = invoke("toy", *options, "-o", tmp_path / "out")
    # 50 points uniform in 5 .. 100 of photos 160 pixels wide: those left of 80
    expected = np.random.default_rng(0).uniform(5, 100, (50, 2)).astype(np.float32)
    assert f"inside {(expected[:, 0] < 80).mean():.3f}" in " ".join(result.stdout.split())
    assert "seen 50" in " ".join(result.stdout.split())
    narrow = invoke("toy", *options, "--part", "0.25", "-o", tmp_path / "out")
    assert f"inside {(expected[:, 0] < 40).mean():.3f}" in " ".join(narrow.stdout.split())
    with pytest.raises(DataError, match="holds no pair for toy"):
        invoke("toy", *options[:-1], "nowhere", "-o", tmp_path / "none")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Toy protocol" in page
    assert read_report(tmp_path / "out")["tables"]["all"]["pairs"]["value"] == 5
    assert "5 shared pairs" in invoke("compare", tmp_path / "out", tmp_path / "out").stdout


def test_a_benchmark_that_declares_too_little_or_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly one of score, measure and run"):
        replace(HPATCHES, measure=lambda *_: [])
    with pytest.raises(ValueError, match="declares metrics and rank_by"):
        replace(HPATCHES, rank_by="")


def test_without_matplotlib_a_report_has_a_line_instead_of_curves(
    invoke, hpatches_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(invoke, hpatches_root, tmp_path / "with")
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    evaluate(invoke, hpatches_root, tmp_path / "without")
    pages = {name: (tmp_path / name / "report.html").read_text() for name in ("with", "without")}
    assert pages["with"].count("<svg") == 1
    assert "<svg" not in pages["without"]
    assert "No curves: matplotlib" in pages["without"]
    assert "[eval]" in pages["without"]


def test_measure_needs_no_files(hpatches_root: Path) -> None:
    tables = measure(HPATCHES, load_hpatches(hpatches_root), plugged_in, estimator="poselib")
    assert tables["illumination"]["MMA@1"] == 1.0
    assert tables["viewpoint"]["MMA@1"] == 0.0
    assert tables["all"]["pairs"] == 7


def test_mistakes_are_one_clear_line(invoke, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hpatches-sequences-release"):
        invoke("hpatches", "--root", tmp_path, "-m", "sift")
    with pytest.raises(ConfigError, match=r"no matcher 'bogus'; choose one of cdunet-lite1.* sift, .* loftr"):
        invoke("hpatches", "--root", tmp_path, "-m", "bogus")
    with pytest.raises(ConfigError, match="--estimator ransac: choose one of opencv"):
        invoke("hpatches", "--root", tmp_path, "-m", "sift", "--estimator", "ransac")


def test_a_file_in_place_of_the_folder_is_refused(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: is a file; give a folder"):
        invoke("hpatches", "--root", hpatches_root, "-m", "sift", "-o", tmp_path / "file")


def test_settings_of_our_matcher_reach_it_and_its_label(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    invoke("hpatches", "--root", hpatches_root, "-o", tmp_path / "out", "--limit", 1, "--device", "cpu",
           "--resolution", 96, "--set", "grid=8", "--set", "refinement=none")  # fmt: skip
    report = read_report(tmp_path / "out")
    assert report["matcher"]["config"]["grid"] == 8
    assert report["matcher"]["config"]["refinement"] == "none"
    assert 0 < report["tables"]["all"]["matches"]["value"] <= 64
    with pytest.raises(ConfigError, match="wanted KEY=VALUE"):
        invoke("hpatches", "--root", hpatches_root, "--set", "grid")
    with pytest.raises(ConfigError, match="no option 'grit'"):
        invoke("hpatches", "--root", hpatches_root, "--set", "grit=3")


def test_other_commands_run(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    invoke("pair-score", "--root", hpatches_root, "-m", "sift", "-o", tmp_path / "score")
    report = read_report(tmp_path / "score")
    assert report["tables"]["all"]["ROC AUC"]["value"] > 0.9
    assert report["tables"]["all"]["accuracy at 0.5"]["value"] is None
    passing = report["tables"]["all"]["FPR at 95 % TPR"]
    assert passing["low"] <= passing["value"] <= passing["high"]
    assert passing["value"] < 0.5


def test_compare_two_matchers(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    evaluate(invoke, hpatches_root, tmp_path / "a")
    evaluate(invoke, hpatches_root, tmp_path / "b", "support.simple_matchers:plugged_in")
    result = invoke("compare", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "c")
    assert "A = sift, B = plugged_in, 7 shared pairs" in result.stdout
    # Two sequences: where both agree the interval leaves out 0, and still nothing is settled.
    assert "all (2 sequences):" in result.stdout
    assert "too few to tell" in result.stdout
    assert "real" not in result.stdout
    comparison = compare_reports(HPATCHES, read_report(tmp_path / "a"), read_report(tmp_path / "b"))
    entry = comparison["tables"]["all"]["matches"]
    assert entry["b"] == 50
    assert entry["difference"]["value"] == pytest.approx(50 - entry["a"])
    page = (tmp_path / "c" / "compare.html").read_text()
    assert "plugged_in" in page
    assert "too few to tell" in page
    assert ">real<" not in page
    assert json.loads((tmp_path / "c" / "compare.json").read_text())["pairs"] == 7


def test_compare_refuses_what_does_not_compare(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    evaluate(invoke, hpatches_root, tmp_path / "a")
    invoke("pair-score", "--root", hpatches_root, "-m", "sift", "-o", tmp_path / "b")
    with pytest.raises(DataError, match="cannot compare hpatches with pair-score"):
        invoke("compare", tmp_path / "a", tmp_path / "b")
    with pytest.raises(DataError, match="run coam eval first"):
        invoke("compare", tmp_path / "a", tmp_path / "nowhere")
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    (tmp_path / "lost.json").write_text(json.dumps({"benchmark": report["benchmark"]}))
    for order in (("a", "lost.json"), ("lost.json", "a")):
        with pytest.raises(DataError, match="has lost its pairs; run coam eval again"):
            invoke("compare", *(tmp_path / name for name in order))


DATA = SHARED / "data"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is not on this machine")
def test_sift_reproduces_its_measured_figures(invoke, tmp_path: Path) -> None:
    result = invoke("hpatches", "--root", DATA / "dev_homography", "-m", "sift", "-o", tmp_path, "--json")
    tables = json.loads(result.stdout)["tables"]
    wanted = {
        "illumination": (0.802, 0.924, 0.935, 0.942, 1255),
        "viewpoint": (0.334, 0.509, 0.540, 0.568, 234),
    }
    for subset, (*shares, matches) in wanted.items():
        for threshold, share in zip((1, 3, 5, 10), shares, strict=True):
            assert tables[subset][f"MMA@{threshold}"]["value"] == pytest.approx(share, abs=0.012)
        assert tables[subset]["matches"]["value"] == pytest.approx(matches, abs=2)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is not on this machine")
def test_sift_solves_the_easy_calibrated_pairs(invoke, tmp_path: Path) -> None:
    result = invoke("posed-pairs", "--root", DATA / "dev_pose", "-m", "rootsift", "-o", tmp_path, "--json",
                    "--limit", 8, "--estimator", "poselib")  # fmt: skip
    assert json.loads(result.stdout)["tables"]["all"]["AUC@5"]["value"] > 0.95


def test_several_matchers_side_by_side(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    """Shifts of 2 and 3 px: the identity is wrong at 1 px, SIFT right; too few sequences to tell."""
    names = ["-m", "sift", "-m", "support.simple_matchers:plugged_in", "-m", "orb"]
    result = invoke("hpatches", "--root", hpatches_root, *names, "-o", tmp_path / "out", "--json")
    table = json.loads(result.stdout)
    assert table["matchers"] == ["sift", "plugged_in", "orb"]
    sift, identity, _ = (entry["value"] for entry in table["tables"]["viewpoint"]["MMA@1"]["values"])
    assert sift > 0.9
    assert identity == 0.0
    assert table["tables"]["viewpoint"]["MMA@1"]["leader"] == "sift"
    assert table["tables"]["all"]["MMA@1"]["verdict"] == "too few to tell"
    assert table["tables"]["all"]["matches"]["leader"] is None  # more matches are not better matches
    assert len(table["seconds"]) == 3
    assert min(table["seconds"]) > 0
    for name, entry in zip(table["matchers"], table["tables"]["all"]["MMA@3"]["values"], strict=True):
        assert read_report(tmp_path / "out" / name)["tables"]["all"]["MMA@3"] == entry
    again = invoke("hpatches", "--root", hpatches_root, *names, "-o", tmp_path / "out")
    lines = again.stdout.splitlines()
    assert lines[0].split("|")[1].strip() == "hpatches, all (7 pairs)"
    assert [cell.strip() for cell in lines[0].split("|")[2:6]] == ["sift", "plugged_in", "orb", "leads"]
    assert (tmp_path / "out" / "side_by_side.md").read_text().strip() in again.stdout


def test_a_real_lead_is_called_real(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    from coam.evaluation.reports.side_by_side import side_by_side, side_by_side_text

    evaluate(invoke, hpatches_root, tmp_path / "a")
    first = read_report(tmp_path / "a")
    pairs = [
        pair | {"sequence": str(i), "name": str(i), "subsets": []}
        for i, pair in enumerate([*first["pairs"], *first["pairs"]])
    ]
    worse = [pair | {"row": pair["row"] | {"mma@1": pair["row"]["mma@1"] - 0.1}} for pair in pairs]
    tables = {"all": first["tables"]["all"]}
    lower = {"all": tables["all"] | {"MMA@1": {"value": 0.1, "low": 0.0, "high": 0.2}}}
    best = first | {"pairs": pairs, "tables": tables}
    other = first | {"pairs": worse, "tables": lower, "matcher": first["matcher"] | {"matcher": "worse"}}
    table = side_by_side(HPATCHES, [other, best])
    assert table["tables"]["all"]["MMA@1"] == {
        "values": [lower["all"]["MMA@1"], tables["all"]["MMA@1"]],
        "leader": "sift",
        "verdict": "real",
    }
    assert table["tables"]["all"]["MMA@3"] == {
        "values": [tables["all"]["MMA@3"]] * 2,
        "leader": None,
        "verdict": "tie",
    }
    assert "sift (real)" in side_by_side_text(table)


def test_two_matchers_of_one_name_are_refused(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two of the matchers have the same name"):
        invoke("hpatches", "--root", hpatches_root, "-m", "sift", "-m", "SIFT", "-o", tmp_path / "out")


@pytest.mark.parametrize("name", [name for name in MODELS if packaged_weights(name) is None])
def test_a_name_without_weights_says_how_to_train_it(name: str) -> None:
    with pytest.raises(WeightsError, match=r"has no trained weights here") as refused:
        require_trained(name)
    command = re.search(r"coam train (\S+) --data", str(refused.value))
    assert command is not None
    recipe = load_recipe(command[1])
    architecture, config = MODELS[name]
    assert recipe.model.architecture == architecture
    trained = build_model(architecture, recipe.model.config)
    wanted = build_model(architecture, config)
    assert trained.config.encoder == wanted.config.encoder or name in ("capsnet", "capsnet-c")
    assert getattr(trained.config, "coattention", ()) == getattr(wanted.config, "coattention", ())
