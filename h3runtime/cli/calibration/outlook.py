"""What a calibration is at, how many clips are left, and about how long they take.

    planned     clips that a part (the exact ones, a level) is likely to take; a search may end sooner or later
    pace        seconds between clips, the median of the last few: a choice's first clip may compile for minutes

Told of each clip before it is made; what was made by a run that was stopped isn't told and counts as done at once.
Shows nothing itself: `show` does. Fed by `running` and `trials`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

PACED: Final = 12
"""Clips."""


@dataclass(frozen=True, slots=True)
class View:
    """what: is being made. done, count: of its clips. left: of all clips, about. seconds: they take, about; None before
    anything was timed. fraction: of the whole, about."""

    what: str
    done: int
    count: int
    left: int
    seconds: float | None
    fraction: float

    @property
    def told(self) -> str:
        about = "" if self.seconds is None else f", about {_told(self.seconds)} for them"
        return f"{self.done}/{self.count} clips, {self.left} more in all{about}"


class Outlook:
    """planned: clips of each part, in order. clock: for tests."""

    def __init__(
        self, planned: Sequence[int], show: Callable[[View], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._later, self._show, self._clock = list(planned), show, clock
        self._all, self._part, self._in_part = sum(planned), 0, 0
        self._times: deque[float] = deque(maxlen=PACED + 1)

    def begin_part(self) -> None:
        """The next one of `planned`; what is left of the one before isn't made any more."""
        self._part, self._in_part = self._later.pop(0), 0

    def __call__(self, what: str, done: int, count: int) -> None:
        """A clip is about to be made: see `trials.OnClip`."""
        self._times.append(self._clock())
        left_of_part = max(self._part - self._in_part, count - done)
        left = left_of_part + sum(self._later)
        self._in_part += 1
        times = list(self._times)
        gaps = [late - early for early, late in pairwise(times)]
        seconds = median(gaps) * left if gaps else None
        fraction = 1 - left / max(self._all, left)
        self._show(View(what, done, count, left, seconds, fraction))


def _told(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
