"""How long each sampler step took, told from outside by when it was reported.

Does: turn the signs of life of one job at a time into seconds a step. Does not: see into a step, or count the first
one's start before it is reported. A report that names a step twice, or names several at once, is no mistake: the time
since the last one is shared by the steps between.
Fed by `metrics`, from the supervisor's thread; read by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

STAGE = "sampling"


class StepClock:
    """One job samples at a time, so the newest report is all that is kept. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: tuple[str, int, float] | None = None

    def told(self, job_id: str, stage: str, step: int) -> list[float]:
        """Seconds of each step that this report ends, none for most. `step`: how many are done."""
        before, self._last = self._last, None
        if stage != STAGE:
            return []
        now = self._clock()
        if before is None or before[0] != job_id or step < before[1]:
            self._last = (job_id, step, now)
            return []
        if not (steps := step - before[1]):
            self._last = before
            return []
        self._last = (job_id, step, now)
        return [(now - before[2]) / steps] * steps
