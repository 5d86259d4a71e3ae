"""What is told of a job as it happens: its last events, numbered, for streams that may break and resume.

Numbers rise for the whole life of a job. They are kept with each change of state; what came after the last of those is
lost with the process, so the next one goes on far above (`AFTER_RESTART`). `table` writes and reads them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from h3runtime.jobs.job import Job

REMEMBERED = 512
"""Events of one job that a stream can resume from; two a step of the longest run, and some."""
AFTER_RESTART = 1_000_000
"""More than a job can have had since its last change of state."""


@dataclass(frozen=True, slots=True)
class Event:
    """kind `state`: `id`, `status` and `error`, the code of a failure. kind `progress`: `stage`, `step`, `steps`,
    `fraction`, `eta_seconds`."""

    id: int
    kind: Literal["state", "progress"]
    data: dict[str, Any]


@dataclass(slots=True)
class EventLog:
    """Of one job. last: the number of the newest, 0 before the first."""

    last: int = 0
    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def news(self, job: Job, before: Job | None) -> tuple[Event, ...]:
        """What there is to tell of a change, not added yet. Progress comes before an end, which is the last of all."""
        told: list[tuple[Literal["state", "progress"], dict[str, Any]]] = []
        if before is None or progress_data(before) != progress_data(job):
            told.append(("progress", progress_data(job)))
        if before is None or before.status is not job.status:
            told.append(("state", state_data(job)))
            if not job.status.ended:
                told = [told[-1], ("progress", progress_data(job))]
        return tuple(Event(self.last + count, kind, data) for count, (kind, data) in enumerate(told, 1))

    def add(self, news: tuple[Event, ...]) -> None:
        for event in news:
            self.last = event.id
            self._events.append(event)

    def shorten(self) -> None:
        """Forget all but how it ended: nobody has followed it for a while."""
        while len(self._events) > 1:
            self._events.popleft()

    def after(self, seen: int | None, job: Job) -> tuple[Event, ...]:
        """What came after the event `seen`; the job as it is for None, or where that can't be told any more."""
        first = self._events[0].id if self._events else self.last + 1
        if seen is None or not first - 1 <= seen <= self.last:
            return self._now(job)
        return tuple(event for event in self._events if event.id > seen)

    def _now(self, job: Job) -> tuple[Event, ...]:
        progress = self._newest("progress")
        before = self._events[0].id - 1 if self._events else self.last
        state = self._newest("state") or Event(before, "state", state_data(job))
        return (state,) if job.status.ended or progress is None else (state, progress)

    def _newest(self, kind: str) -> Event | None:
        return next((event for event in reversed(self._events) if event.kind == kind), None)


def state_data(job: Job) -> dict[str, Any]:
    return {"id": job.id, "status": job.status.value, "error": job.error.code if job.error else None}


def progress_data(job: Job) -> dict[str, Any]:
    progress = job.progress
    names = ("stage", "step", "steps", "fraction", "eta_seconds")
    return {name: getattr(progress, name) for name in names}
