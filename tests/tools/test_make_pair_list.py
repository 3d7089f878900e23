"""Pairs of different places are as many as those of one place, and never of one place."""

from pathlib import Path

from tools.make_pair_list import crossed, place

from coam.evaluation.pairs import EvaluationPair


def pair(scene: str, first: str, second: str) -> EvaluationPair:
    folder = Path(scene)
    return EvaluationPair(f"{scene} {first}", folder / first, folder / second, scene, ("all",))


def test_wrong_pairs_skip_the_other_pairs_of_the_same_place() -> None:
    pairs = [pair("lund", "1", "2"), pair("lund", "1", "3"), pair("fox", "1", "2"), pair("fox", "4", "2")]
    labelled = crossed(pairs)
    wrong = [(str(a), str(b)) for a, b, label in labelled if label == 0]
    assert wrong == [("lund/1", "fox/2"), ("lund/1", "fox/2"), ("fox/1", "lund/2"), ("fox/4", "lund/2")]
    assert [place(a) == place(b) for a, b, label in labelled] == [label == 1 for *_, label in labelled]
