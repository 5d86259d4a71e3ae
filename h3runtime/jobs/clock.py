"""Two clocks: the wall's for what people read, and one that nobody sets for everything that is measured.

`steady` starts as the seconds since 1970 that the wall says when the process starts and then only runs: a time to
expire that was kept by an earlier process can be compared to it, and setting the wall clock moves nothing.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

SLACK = 1.0
"""Seconds by which both may differ without anybody having set the wall clock: it is steered all the time."""


class Clock:
    """Of one process."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def steady(self) -> float:
        return self._offset + time.monotonic()

    def deadline(self, finished: datetime, seconds: float) -> datetime:
        """`seconds` from `finished`, which is now, on the clock that expiry is judged by."""
        set_by = self.steady() - finished.timestamp()
        return finished + timedelta(seconds=seconds + (set_by if abs(set_by) > SLACK else 0.0))
