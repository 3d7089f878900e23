"""The least-recently-used cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """At most `maxsize` values by key; the one that was not asked for longest goes first. Not thread-safe."""

    def __init__(
        self, maxsize: int, evicted: Callable[[Key, Value], object] = lambda key, value: None
    ) -> None:
        """evicted: told about every value that has to go."""
        self.maxsize = maxsize
        self._evicted = evicted
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of `key`, made by `make` where it is not kept."""
        if key not in self._values:
            self._values[key] = make()
            while len(self._values) > self.maxsize:
                self._evicted(*self._values.popitem(last=False))
        self._values.move_to_end(key)
        return self._values[key]

    def clear(self) -> None:
        """Evict everything."""
        while self._values:
            self._evicted(*self._values.popitem(last=False))
