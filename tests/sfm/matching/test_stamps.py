"""Stamps outlive the code: their text is pinned, and settings that came later do not change it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

from coam.matching.settings import MatcherConfig
from coam.sfm.mapping.options import LoopClosureOptions, MapperOptions
from coam.sfm.matching.stamps import matcher_key, recorded_text, recorded_values
from coam.sfm.tracks.align_graph import TrackAlignOptions
from coam.sfm.verification.two_view import VerifyOptions
from coam.sfm.workspace import SfmOptions

# As the first model folders were stamped. A change here throws away matches that cost hours.
VERIFY = (
    "VerifyOptions(max_error=0.0025, min_inliers=20, chance=3.0, min_overlap=0.1, border=1.0, "
    "min_spread=0.015, seed=0)"
)
ALIGN = "PatchAlignment(radius=6, blur=0.7, iterations=5, min_similarity=0.7, max_move=0.5)"
SFM = (
    "SfmOptions(pairing='auto', pairs_file=None, neighbours=20, "
    "cameras=CameraChoice(model='SIMPLE_RADIAL', sharing='auto', given=None), "
    f"verify={VERIFY}, cycle_error=15.0, "
    "detours=DetourOptions(reach=2.0, max_error=0.02, few=20, trusted=0.8, strong=0.25), "
    f"tracks='refined', align={ALIGN}, "
    "merge=MergeOptions(noise=0.08, linear=0.3, gauge=0.001, iterations=6, tolerance=0.3, "
    "max_displacement=1.0), "
    "mapper=MapperOptions(mapper='incremental', min_model_size=3, max_reprojection_error=4.0, "
    "refine_intrinsics=True, min_links=15, links_per_pair=300, seed=0, threads=1), masks=None, workers=1)"
)
MATCHER = (
    "MatcherConfig(resolution=800, squash=False, grid=None, max_matches=4096, min_score=0.001, "
    "min_distinctiveness=0.02, crowding=0.99, ranking='dual_softmax', refinement='fine', fine_radius=2, "
    "looks='once', cached_images=1)"
)


@pytest.mark.parametrize(
    ("options", "text"), [(VerifyOptions(), VERIFY), (TrackAlignOptions(), ALIGN), (SfmOptions(), SFM)]
)
def test_default_options_are_recorded_as_ever(options, text):
    assert recorded_text(options) == text


def test_the_matcher_is_recorded_as_ever():
    config = MatcherConfig(
        max_matches=4096, refinement="fine", looks="once", alignment="none", cached_images=7
    )
    matcher = SimpleNamespace(config=config, file=SimpleNamespace(sha256="78b7"))
    assert matcher_key(matcher) == f"SimpleNamespace 78b7 {MATCHER}"
    other = SimpleNamespace(config=replace(config, resolution=640), file=matcher.file)
    assert matcher_key(other) == matcher_key(matcher).replace("resolution=800", "resolution=640")
    aligned = SimpleNamespace(config=replace(config, alignment="patches"), file=matcher.file)
    assert matcher_key(aligned) == matcher_key(matcher)[:-1] + ", alignment='patches')"


def test_fields_that_came_later_count_only_where_they_differ():
    @dataclass(frozen=True)
    class Renamed:
        RECORDED: ClassVar[str] = "Old(reach=radius, seed)"
        radius: float = 2.0
        later: tuple[float, float] = (1.0, 2.0)
        seed: int = 0

    assert recorded_text(Renamed()) == "Old(reach=2.0, seed=0)"
    assert recorded_text(Renamed(later=(1.0, 3.0))) == "Old(reach=2.0, seed=0, later=(1.0, 3.0))"
    assert recorded_values(Renamed(radius=3.0)) == {"reach": 3.0, "seed": 0, "later": [1.0, 2.0]}
    wide = SfmOptions(mapper=MapperOptions(loop_closure=LoopClosureOptions(radius=0.1)))
    assert recorded_text(wide) == SFM.replace(
        "threads=1)",
        "threads=1, loop_closure=LoopClosureOptions(max_contradiction=0.003, radius=0.1, angle=4.0, "
        "loss_scale=1.0))",
    )


def test_settings_json_has_the_names_that_it_always_had():
    values = recorded_values(SfmOptions())
    assert list(values)[:7] == [
        "pairing", "pairs_file", "neighbours", "cameras", "verify", "cycle_error", "detours",
    ]  # fmt: skip
    before = {"reach": 2.0, "max_error": 0.02, "few": 20, "trusted": 0.8, "strong": 0.25}
    assert values["detours"] == before | {"min_evidence": 10.0, "alone_evidence": 100.0}
    assert values["mapper"]["links_per_pair"] == 300
