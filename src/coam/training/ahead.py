"""Batches drawn ahead: while the network learns from one, a thread makes the next ones.

What a batch holds depends on its step alone, so a run that was killed and resumed draws what an unbroken one
does, however far ahead either had drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Ahead(Generic[Batch]):
    """The batches of steps, of which the next `depth` are being made while one is used."""

    def __init__(self, draw: Callable[[int], Batch], depth: int = 2) -> None:
        """draw: step -> its batch; called in a thread of its own, one step after the other."""
        self._draw, self._depth = draw, depth
        # One thread: a source spreads the pairs of a batch over threads of its own.
        self._pool = ThreadPoolExecutor(1, "coam-batches")
        self._coming: dict[int, Future[Batch]] = {}

    def take(self, step: int, end: int) -> Batch:
        """The batch of `step`; those of the steps behind it, below `end`, are begun."""
        self._coming = {k: future for k, future in self._coming.items() if k >= step}
        for k in range(step, min(step + 1 + self._depth, max(end, step + 1))):
            if k not in self._coming:
                self._coming[k] = self._pool.submit(self._draw, k)
        return self._coming.pop(step).result()

    def close(self) -> None:
        """Give up what has not been begun, and wait for what has."""
        self._pool.shutdown(wait=True, cancel_futures=True)
