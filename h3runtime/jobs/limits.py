"""How long silence may last, and how often an engine may die: the numbers of `supervisor`, and who counts them.

Limits    seconds by stage, of the heartbeat and of the graces; from the settings
Running   the job that the engine has: where it is, when it last moved, how long its steps take
Deaths    those of the last while, against the budget
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from h3runtime.core import Progress
from h3runtime.errors import H3Error, JobCancelled, JobTimeout
from h3runtime.settings import Settings

FIRST_STAGE = "conditioning"
"""Where a job is that has shown no sign of life yet."""
STEPS_OF_GRACE = 3
"""How many of its longest steps a job that was cancelled may take to notice."""

MUX_MARGIN = 15.0
"""Seconds for the engine to end a silent encoder and to tell."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of silence that are allowed, and how often a process may be started again.

    stages: by `Progress.stage`; until a job's first sign of life the limit of `conditioning` holds. `warming` is the
    time of one warm-up shape. Loading has none: it is as slow as the disk is.
    heartbeat: the child beats once a second, but a native call that keeps the interpreter locked delays it.
    restarts: within `restart_window` seconds. stop_grace: from a request to stop until the kill; a cancelled job has
    longer where its steps are long. leave_grace: to close.
    """

    stages: Mapping[str, float] = field(default_factory=dict)
    heartbeat: float = 60.0
    restarts: int = 3
    restart_window: float = 600.0
    stop_grace: float = 4.0
    leave_grace: float = 3.0

    @classmethod
    def from_settings(cls, settings: Settings) -> Limits:
        stages = {
            "conditioning": settings.timeout_conditioning,
            "sampling": settings.timeout_step,
            "video_decode": settings.timeout_decode,
            "audio_decode": settings.timeout_decode,
            # The engine ends an encoder that is silent for so long; only if it doesn't, it must go itself.
            "mux": settings.timeout_mux + MUX_MARGIN,
        }
        # A warm-up shape is a whole job that reports nothing until it is done.
        stages["warming"] = sum(stages.values())
        return cls(stages, restarts=settings.restarts, restart_window=settings.restart_window)

    def of_stage(self, stage: str) -> float | None:
        return self.stages.get(stage, self.stages.get(FIRST_STAGE))


class Running:
    """The job the engine has: where it is, when it last moved, and when it was asked to stop."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.stage = FIRST_STAGE
        self.step: int | None = None
        self.moved = time.monotonic()
        self.stop_sent: float | None = None
        self._longest = 0.0

    def advance(self, progress: Progress) -> None:
        now = time.monotonic()
        # What came before the first sign of a stage tells nothing about its steps.
        self._longest = max(self._longest, now - self.moved) if progress.stage == self.stage else 0.0
        self.stage, self.step, self.moved = progress.stage, progress.step, now

    def overdue(self, limits: Limits, wish: H3Error | None) -> H3Error | None:
        """Why the engine must go, if it must. wish: what it was asked to end the job with, if it was."""
        now, limit = time.monotonic(), limits.of_stage(self.stage)
        late = limit is not None and now - self.moved > limit
        if wish is not None and self.stop_sent is not None and now - self.stop_sent > self._grace(limits, wish):
            # It doesn't react to being asked, so whoever wanted it stopped gets it stopped.
            return wish
        if late and wish is not None:
            return wish
        if late:
            why = f"the stage {self.stage} made no progress for {limit:g} s"
            return JobTimeout(why, stage=self.stage, step=self.step)
        return None

    def _grace(self, limits: Limits, wish: H3Error) -> float:
        """A healthy engine hears at its next step. In a stage whose steps nobody has seen yet only its limit holds."""
        if not isinstance(wish, JobCancelled):
            return limits.stop_grace
        if not self._longest:
            return float("inf") if limits.of_stage(self.stage) is not None else limits.stop_grace
        return max(limits.stop_grace, STEPS_OF_GRACE * self._longest)


class Deaths:
    """Counts them; those longer ago than the window are forgotten."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._times: deque[float] = deque()

    def add(self) -> str:
        """One more. Why there may be no other process, "" if there may."""
        now = time.monotonic()
        self._times.append(now)
        while now - self._times[0] > self._limits.restart_window:
            self._times.popleft()
        if len(self._times) <= self._limits.restarts:
            return ""
        return f"it has died {len(self._times)} times in {self._limits.restart_window:g} s"
