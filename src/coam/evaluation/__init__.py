"""Evaluation of matchers on public benchmarks. From Python:

from pathlib import Path
from coam.evaluation.benchmarks.hpatches import HPATCHES, load_hpatches
from coam.evaluation.matchers.by_name import find_matcher
from coam.evaluation.runner import evaluate, measure

pairs = load_hpatches(Path("hpatches-sequences-release"))
measure(HPATCHES, pairs, matcher)["viewpoint"]["MMA@3"]                # at once, no files
evaluate(HPATCHES, pairs, find_matcher("sift"), Path("out"))           # cached, restartable, with a report
"""
