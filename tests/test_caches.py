"""The least-recently-used cache."""

from __future__ import annotations

import pytest

from coam.caches import LRUCache


def test_the_value_not_asked_for_longest_goes_first() -> None:
    gone: list[tuple[str, int]] = []
    cache: LRUCache[str, int] = LRUCache(2, lambda key, value: gone.append((key, value)))
    assert [cache.get("a", lambda: 1), cache.get("b", lambda: 2)] == [1, 2]
    assert cache.get("a", lambda: pytest.fail("made again")) == 1
    cache.get("c", lambda: 3)  # "b" has to go
    assert gone == [("b", 2)]
    assert ("a" in cache, "b" in cache, len(cache)) == (True, False, 2)
    assert cache.get("b", lambda: 4) == 4
    cache.clear()
    assert gone == [("b", 2), ("a", 1), ("c", 3), ("b", 4)]
    assert len(cache) == 0
