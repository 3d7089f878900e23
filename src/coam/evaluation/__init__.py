"""Measuring matchers the way the field does. From Python:

from pathlib import Path
from coam.evaluation.benchmarks import HPATCHES
from coam.evaluation.hpatches import load_hpatches
from coam.evaluation.matchers import find_matcher
from coam.evaluation.runner import evaluate, measure

pairs = load_hpatches(Path("hpatches-sequences-release"))
measure(HPATCHES, pairs, matcher)["viewpoint"]["MMA@3"]                # at once, no files
evaluate(HPATCHES, pairs, find_matcher("sift"), Path("out"))           # cached, restartable, with a report
"""
