"""settings.json: folders that an earlier version made go on."""

from __future__ import annotations

from coam.sfm.matching.stamps import recorded_values
from coam.sfm.settings import differences
from coam.sfm.workspace import SfmOptions


def test_only_what_both_have_can_differ():
    now = recorded_values(SfmOptions())
    before = {
        "cycle_error": 15.0,
        "detours": {"reach": 2.0, "max_error": 0.02, "few": 20, "trusted": 0.8, "strong": 0.25},
        "mapper": {"mapper": "incremental", "min_links": 15, "links_per_pair": 300, "gone": 1},
    }
    assert differences(before, now) == ""
    before["detours"]["few"] = 30
    before["mapper"]["links_per_pair"] = 200
    changed = "detours few 30 (now 20), mapper links per pair 200 (now 300)"
    assert differences(before, now) == changed
