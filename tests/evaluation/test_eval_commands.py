"""`coam eval ...` from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coam.cli.eval import register
from coam.errors import CoamError, ConfigError, DataError
from coam.evaluation.compare import compare_reports
from coam.evaluation.runner import read_report
from coam.evaluation.text_report import few_note


@pytest.fixture
def invoke():
    app = typer.Typer()
    register(app)

    @app.command()
    def nothing() -> None: ...

    def run(*arguments: object):
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
    tables = evaluate(invoke, hpatches_root, tmp_path / "out", "simple_matchers:plugged_in")
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


def test_measure_needs_no_files(hpatches_root: Path) -> None:
    from simple_matchers import plugged_in

    from coam.evaluation.benchmarks import HPATCHES
    from coam.evaluation.hpatches import load_hpatches
    from coam.evaluation.runner import measure

    tables = measure(HPATCHES, load_hpatches(hpatches_root), plugged_in, estimator="poselib")
    assert tables["illumination"]["MMA@1"] == 1.0
    assert tables["viewpoint"]["MMA@1"] == 0.0
    assert tables["all"]["pairs"] == 7


def test_mistakes_are_one_clear_line(invoke, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hpatches-sequences-release"):
        invoke("hpatches", "--root", tmp_path, "-m", "sift")
    with pytest.raises(ConfigError, match=r"no matcher 'bogus'; choose one of cdunet-lite1.* sift, .* loftr"):
        invoke("hpatches", "--root", tmp_path, "-m", "bogus")
    with pytest.raises(ConfigError, match="--estimator ransac is not known"):
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
    passing = report["tables"]["all"]["wrong at 95 % of true"]
    assert passing["low"] <= passing["value"] <= passing["high"]
    assert passing["value"] < 0.5


def test_compare_two_matchers(invoke, hpatches_root: Path, tmp_path: Path) -> None:
    evaluate(invoke, hpatches_root, tmp_path / "a")
    evaluate(invoke, hpatches_root, tmp_path / "b", "simple_matchers:plugged_in")
    result = invoke("compare", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "c")
    assert "A = sift, B = plugged_in, 7 shared pairs" in result.stdout
    # Two sequences: where both agree the interval leaves out 0, and still nothing is settled.
    assert "all (2 sequences):" in result.stdout
    assert "too few to tell" in result.stdout
    assert "real" not in result.stdout
    comparison = compare_reports(tmp_path / "a", tmp_path / "b")
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


SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not on this machine")
def test_sift_reproduces_its_measured_figures(invoke, tmp_path: Path) -> None:
    result = invoke("hpatches", "--root", SHARED / "dev_homography", "-m", "sift", "-o", tmp_path, "--json")
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
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not on this machine")
def test_sift_solves_the_easy_calibrated_pairs(invoke, tmp_path: Path) -> None:
    result = invoke("posed-pairs", "--root", SHARED / "dev_pose", "-m", "rootsift", "-o", tmp_path, "--json",
                    "--limit", 8, "--estimator", "poselib")  # fmt: skip
    assert json.loads(result.stdout)["tables"]["all"]["AUC@5"]["value"] > 0.95
