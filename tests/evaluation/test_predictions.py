"""Finished pairs are never computed twice, whatever happened to the run that computed them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec, keypoint_matches
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.predictions import PredictionStore, fingerprint, predict
from coam.store.journal import PairJournal
from coam.types import Matches
from support import REPOSITORY, TESTS
from support.simple_matchers import CountingMatcher, save


def spec_of_counting(matchers: list[CountingMatcher], **config: object) -> MatcherSpec:
    def create() -> CountingMatcher:
        matchers.append(CountingMatcher())
        return matchers[-1]

    return MatcherSpec("counting", dict(config), create)


def run(pairs, folder: Path, workers: int = 1, **config: object) -> list[CountingMatcher]:
    matchers: list[CountingMatcher] = []
    spec = spec_of_counting(matchers, **config)
    predict(pairs, spec, PredictionStore(folder, spec.identity), workers=workers)
    return matchers


def test_matches_come_back_as_they_were(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 2)
    run(pairs, tmp_path / "out")
    store = PredictionStore(tmp_path / "out", {"matcher": "counting", "config": {}, "model_hash": ""})
    first, second = store.read(pairs)
    expected = np.random.default_rng(0).uniform(5, 100, (50, 2)).astype(np.float32)
    assert np.array_equal(first.points0, expected)
    assert np.array_equal(second.points1, expected)
    assert first.size0 == (8, 8)
    assert first.meta["seconds"] >= 0


def test_everything_is_in_one_h5_with_its_label(make_pairs, tmp_path: Path) -> None:
    run(make_pairs(2, 2), tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["predictions.h5", "predictions.json"]
    assert len(PairJournal(tmp_path / "out" / "predictions.h5")) == 4
    assert json.loads((tmp_path / "out" / "predictions.json").read_text())["matcher"] == "counting"


def test_540_pairs_encode_each_photo_once(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(108, 5)
    assert len(pairs) == 540
    (matcher,) = run(pairs, tmp_path / "out")
    assert len(matcher.matched) == 540
    assert len(matcher.encoded) == len(set(matcher.encoded)) == 108 * 6


def test_workers_keep_a_sequence_together(make_pairs, tmp_path: Path) -> None:
    matchers = run(make_pairs(6, 3), tmp_path / "out", workers=3)
    assert len(matchers) == 3
    encoded = [path for matcher in matchers for path in matcher.encoded]
    assert len(encoded) == len(set(encoded)) == 6 * 4


def test_a_second_run_computes_nothing(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(2, 2)
    run(pairs, tmp_path / "out")
    assert run(pairs, tmp_path / "out") == []


def test_only_new_pairs_are_computed(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(2, 2)
    run(pairs[:3], tmp_path / "out")
    (matcher,) = run(pairs, tmp_path / "out")
    assert matcher.matched == [(pairs[3].image0, pairs[3].image1)]


def test_a_changed_config_refuses_to_mix(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 1)
    run(pairs, tmp_path / "out", resolution=512)
    with pytest.raises(ConfigError, match=r"config.resolution: 512 -> 768.*--no-resume"):
        run(pairs, tmp_path / "out", resolution=768)


def test_no_resume_starts_again(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 2)
    run(pairs, tmp_path / "out", resolution=512)
    matchers: list[CountingMatcher] = []
    spec = spec_of_counting(matchers, resolution=768)
    assert predict(pairs, spec, PredictionStore(tmp_path / "out", spec.identity, resume=False)) == 2


def test_changed_photos_refuse_to_mix(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 1)
    run(pairs, tmp_path / "out")
    save(pairs[0].image1, np.random.default_rng(0).integers(0, 255, (30, 30, 3), dtype=np.uint8))
    with pytest.raises(DataError, match="not those that out was computed from"):
        run(pairs, tmp_path / "out")


def test_a_damaged_cache_says_what_to_do(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 1)
    run(pairs, tmp_path / "out")
    (tmp_path / "out" / "predictions.h5").write_bytes(b"not an hdf5 file")
    with pytest.raises(DataError, match="--no-resume"):
        run(pairs, tmp_path / "out")


def test_a_matcher_that_fails_keeps_what_was_finished(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(2, 2)

    class Failing(CountingMatcher):
        def match_many(self, given):
            for index, matches in enumerate(super().match_many(given)):
                if index == 3:
                    raise RuntimeError("out of memory")
                yield matches

    spec = MatcherSpec("counting", {}, Failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        predict(pairs, spec, PredictionStore(tmp_path / "out", spec.identity))
    (matcher,) = run(pairs, tmp_path / "out")
    assert len(matcher.matched) == 1


def test_sigkill_in_the_middle_loses_nothing_that_was_finished(make_pairs, tmp_path: Path) -> None:
    """A real process, really killed, then resumed: the pairs it had finished are not matched again."""
    pairs = make_pairs(10, 3)
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            from pathlib import Path
            sys.path.insert(0, {str(TESTS)!r})
            from support.simple_matchers import CountingMatcher
            from coam.evaluation.matchers.by_name import MatcherSpec
            from coam.evaluation.pairs import EvaluationPair
            from coam.evaluation.predictions import PredictionStore, predict

            class Slow(CountingMatcher):
                def match_many(self, pairs):
                    for matches in super().match_many(pairs):
                        yield matches
                        time.sleep(0.05)

            root = Path({str(tmp_path / "photos")!r})
            pairs = [
                EvaluationPair(f"{{s}}/1-{{k}}", root / s / "1.png", root / s / f"{{k}}.png", s)
                for s in [f"s{{i}}" for i in range(10)] for k in (2, 3, 4)
            ]
            spec = MatcherSpec("counting", {{}}, Slow)
            predict(pairs, spec, PredictionStore(Path({str(tmp_path / "out")!r}), spec.identity))
            """
        )
    )
    process = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": _python_path()})
    parts = tmp_path / "out" / "predictions.h5.parts"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(parts.glob("[!.]*.npz"))) < 7:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished = len(list(parts.glob("[!.]*.npz")))  # hidden: half-written when the process died
    assert 7 <= finished < 30
    (matcher,) = run(pairs, tmp_path / "out")
    assert len(matcher.matched) == 30 - finished
    assert run(pairs, tmp_path / "out") == []


def _python_path() -> str:
    return str(REPOSITORY / "src")


def test_half_written_parts_are_not_taken_for_finished(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 2)
    run(pairs[:1], tmp_path / "out")
    parts = tmp_path / "out" / "predictions.h5.parts"
    parts.mkdir()
    (parts / "abc.tmp").write_bytes(b"half")
    (matcher,) = run(pairs, tmp_path / "out")
    assert len(matcher.matched) == 1
    assert not parts.exists()


def test_turned_photos_are_matched_upright_and_mapped_back(tmp_path: Path) -> None:
    """A photo with rot=1 is shown to the matcher turned counter-clockwise; matches are of the stored one."""
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[10, 50] = 255  # one white pixel at x = 50, y = 10
    save(tmp_path / "a.png", picture)

    def brightest(path0: Path, path1: Path) -> Matches:
        from PIL import Image

        found = []
        for path in (path0, path1):
            grey = np.asarray(Image.open(path).convert("L"))
            y, x = np.unravel_index(grey.argmax(), grey.shape)
            found.append((np.array([[x, y]], np.float32), (grey.shape[1], grey.shape[0])))
        (points0, size0), (points1, size1) = found
        return keypoint_matches(points0, points1, np.ones(1, np.float32), size0, size1)

    pair = EvaluationPair("a", tmp_path / "a.png", tmp_path / "a.png", "a", turns0=1, turns1=2)
    seen: list[tuple[Path, Path]] = []

    def spy(path0: Path, path1: Path) -> Matches:
        seen.append((path0, path1))
        return brightest(path0, path1)

    spec = MatcherSpec("spy", {}, lambda: FunctionMatcher(spy))
    store = PredictionStore(tmp_path / "out", spec.identity)
    predict([pair], spec, store)
    from PIL import Image

    assert Image.open(seen[0][0]).size == (40, 60)
    (matches,) = store.read([pair])
    assert matches.points0.tolist() == [[50, 10]]
    assert matches.points1.tolist() == [[50, 10]]
    assert (matches.size0, matches.size1) == ((60, 40), (60, 40))


def test_a_part_that_a_power_cut_emptied_is_computed_again(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 2)
    spec = spec_of_counting([])
    store = PredictionStore(tmp_path / "out", spec.identity)
    (matches,) = CountingMatcher().match_many([(pairs[0].image0, pairs[0].image1)])
    store.add(pairs[0], matches)
    (part,) = store.journal.parts.glob("*.npz")
    part.write_bytes(b"")
    (matcher,) = run(pairs, tmp_path / "out")
    assert len(matcher.matched) == 2


def old_layout(folder: Path, pairs: list[EvaluationPair], identity: dict[str, object], parts: int) -> None:
    """A cache before `PairJournal`: a group per pair in the .h5, the last `parts` pairs in own files."""
    (folder / "predictions.parts").mkdir(parents=True)
    label = json.dumps(identity | {"format": 1}, sort_keys=True)
    (folder / "predictions.json").write_text(label)
    found = list(CountingMatcher().match_many((pair.image0, pair.image1) for pair in pairs))
    with h5py.File(folder / "predictions.h5", "w") as store:
        store.attrs["identity"] = label
        for index, (pair, matches) in enumerate(zip(pairs, found, strict=True)):
            columns = {"points0": matches.points0 + index, "points1": matches.points1}
            columns["scores"] = matches.scores
            values = {"name": pair.name, "fingerprint": fingerprint(pair), "overlap": 0.25, "seconds": 1.5}
            values["sizes"] = np.array([*matches.size0, *matches.size1])
            key = hashlib.sha256(pair.name.encode()).hexdigest()[:24]
            if index >= len(pairs) - parts:
                np.savez(folder / "predictions.parts" / f"{key}.npz", **columns, **values)
                continue
            group = store.create_group(key)
            for name, column in columns.items():
                group.create_dataset(name, data=column)
            group.attrs.update(values)


def test_a_cache_of_the_old_layout_is_imported_once(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(2, 3)
    spec = spec_of_counting([])
    old_layout(tmp_path / "out", pairs[:5], spec.identity, parts=2)
    (matcher,) = run(pairs, tmp_path / "out")
    assert matcher.matched == [(pairs[5].image0, pairs[5].image1)]  # the only pair that was not finished
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["predictions.h5", "predictions.json"]
    assert len(PairJournal(tmp_path / "out" / "predictions.h5")) == 6
    expected = np.random.default_rng(0).uniform(5, 100, (50, 2)).astype(np.float32)
    for index, matches in enumerate(PredictionStore(tmp_path / "out", spec.identity).read(pairs[:5])):
        np.testing.assert_array_equal(matches.points0, expected + np.float32(index))
        np.testing.assert_array_equal(matches.points1, expected)
        assert (matches.size1, matches.overlap, matches.meta["seconds"]) == ((8, 8), 0.25, 1.5)


def test_an_old_cache_with_a_broken_part_computes_that_pair_again(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 3)
    old_layout(tmp_path / "out", pairs, spec_of_counting([]).identity, parts=1)
    (part,) = (tmp_path / "out" / "predictions.parts").glob("*.npz")
    part.write_bytes(part.read_bytes()[:100])
    (matcher,) = run(pairs, tmp_path / "out")
    assert matcher.matched == [(pairs[2].image0, pairs[2].image1)]


def test_old_caches_of_other_photos_are_refused_too(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 1)
    old_layout(tmp_path / "out", pairs, spec_of_counting([]).identity, parts=0)
    save(pairs[0].image1, np.random.default_rng(0).integers(0, 255, (30, 30, 3), dtype=np.uint8))
    with pytest.raises(DataError, match="not those that out was computed from"):
        run(pairs, tmp_path / "out")
