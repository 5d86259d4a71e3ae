"""How far loading is, for `/ready` and the progress bar: by bytes of all files, at most a few times a second.

Fed by `load` with positions in the component's files, whether their bytes become tensors or are only hashed or skipped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from h3runtime.core import LoadProgress, OnProgress, Progress

REPORT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Portion:
    """A component to be read, `partition` of a transformer, and the bytes of its files."""

    component: str
    partition: str | None
    bytes: int


class LoadMeter:
    """portions: in the order of loading."""

    def __init__(self, portions: Sequence[Portion], on_progress: OnProgress) -> None:
        self._portions, self._on_progress = portions, on_progress
        self._in_all = max(1, sum(portion.bytes for portion in portions))
        self._before = self._index = 0
        self._began = self._told = time.monotonic()

    def begin(self, index: int) -> None:
        """The files of that portion are opened now; those before it are done."""
        self._index = index
        self._before = sum(portion.bytes for portion in self._portions[:index])
        self._began = time.monotonic()
        self._tell(0)

    def at(self, position: int) -> None:
        """So many bytes of the component's files lie behind."""
        is_end = position >= self._portions[self._index].bytes
        if is_end or time.monotonic() - self._told >= REPORT_SECONDS:
            self._tell(position)

    def _tell(self, position: int) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._began
        done = self._before + position
        rate = position / seconds if seconds > 0 else 0.0
        portion = self._portions[self._index]
        loading = LoadProgress(portion.component, done, self._in_all, rate, portion.partition)
        fraction = min(1.0, done / self._in_all)
        self._on_progress(Progress("loading", self._index, len(self._portions), fraction, loading=loading))
