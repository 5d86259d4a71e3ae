"""How long the stages of something took, in seconds on a clock that never jumps.

Does: add up seconds per stage, also when a stage fails or comes more than once. Does not: wait for a device; whoever
times device work synchronises first, inside the stage. Nested stages each count in full. Each stage is a span as well.
Fed and read by `engine.run`, one timer a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from h3runtime.observe.spans import span


class StageTimer:
    """`with timer.stage("sampling"): ...`, then `timer.timings["sampling"]`. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time until the block is left, however it is left, to stage `name`."""
        began = self._clock()
        try:
            with span(name):
                yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - began

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds per stage so far, in the order in which stages first ended; a live read-only view."""
        return MappingProxyType(self._seconds)

    @property
    def total(self) -> float:
        """Seconds since the timer was made."""
        return self._clock() - self._began
