"""Finished pairs are never computed twice, whatever happened to the run that computed them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coam.errors import ConfigError, DataError
from coam.evaluation import predictions
from coam.evaluation.matchers.by_name import FunctionMatcher, MatcherSpec, keypoint_matches
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.predictions import PredictionStore, predict
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


def test_a_damaged_cache_is_put_aside_and_computed_again(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 1)
    run(pairs, tmp_path / "out")
    (tmp_path / "out" / "predictions.h5").write_bytes(b"not an hdf5 file")
    (matcher,) = run(pairs, tmp_path / "out")
    assert len(matcher.matched) == 1
    assert (tmp_path / "out" / "predictions.h5.damaged").read_bytes() == b"not an hdf5 file"


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


def test_photos_that_were_replaced_by_others_of_the_same_size_refuse_to_mix(
    make_pairs, tmp_path: Path
) -> None:
    pairs = make_pairs(1, 2)
    run(pairs, tmp_path / "out")
    content = bytearray(pairs[0].image1.read_bytes())
    content[-20] ^= 1
    before = pairs[0].image1.stat()
    pairs[0].image1.write_bytes(content)
    os.utime(pairs[0].image1, ns=(before.st_atime_ns, before.st_mtime_ns))
    predictions._digest_of_version.cache_clear()  # as in a new process
    with pytest.raises(DataError, match="not those that out was computed from"):
        run(pairs, tmp_path / "out")


def test_a_cache_that_knew_sizes_only_is_refused(make_pairs, tmp_path: Path) -> None:
    pairs = make_pairs(1, 1)
    run(pairs, tmp_path / "out")
    label = tmp_path / "out" / "predictions.json"
    content = json.loads(label.read_text()) | {"format": 1}
    del content["sha256"]
    label.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"format: 1 -> 2.*--no-resume"):
        run(pairs, tmp_path / "out")


def test_a_turned_copy_of_a_replaced_photo_is_made_again(tmp_path: Path) -> None:
    photo = tmp_path / "a.png"
    for value in (10, 200):
        save(photo, np.full((20, 30, 3), value, np.uint8))
        copy = predictions._upright(photo, 1, tmp_path / "turned")
        assert np.asarray(Image.open(copy)).shape == (30, 20, 3)
        assert np.asarray(Image.open(copy)).max() == value
