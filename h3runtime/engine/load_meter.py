"""How far loading is, for `/ready` and the progress bar: by bytes of all files, at most a few times a second.

Fed by `load` with positions in the component's files, whether their bytes become tensors or are only hashed or skipped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from h3runtime.core import LoadProgress, OnProgress, Progress

REPORT_SECONDS = 0.2


class LoadMeter:
    """sizes: bytes of each component's files, in the order of loading."""

    def __init__(self, sizes: Mapping[str, int], on_progress: OnProgress) -> None:
        self._sizes, self._on_progress = sizes, on_progress
        self._names = list(sizes)
        self._in_all = max(1, sum(sizes.values()))
        self._before = self._index = 0
        self._began = self._told = time.monotonic()

    def begin(self, component: str) -> None:
        """Its files are opened now; those before it in the order are done."""
        self._index = self._names.index(component)
        self._before = sum(self._sizes[name] for name in self._names[: self._index])
        self._began = time.monotonic()
        self._tell(0)

    def at(self, position: int) -> None:
        """So many bytes of the component's files lie behind."""
        if position >= self._sizes[self._names[self._index]] or time.monotonic() - self._told >= REPORT_SECONDS:
            self._tell(position)

    def _tell(self, position: int) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._began
        done = self._before + position
        rate = position / seconds if seconds > 0 else 0.0
        loading = LoadProgress(self._names[self._index], done, self._in_all, rate)
        fraction = min(1.0, done / self._in_all)
        self._on_progress(Progress("loading", self._index, len(self._names), fraction, loading=loading))
