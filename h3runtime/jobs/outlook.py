"""How long jobs will take and wait, by the history of the loaded engine and by what is in line.

`queue` teaches it and asks it for what it tells of jobs; `api` asks through `queue`. Nothing here changes a job.
"""

from __future__ import annotations

from h3runtime.core import EngineFacts, Work
from h3runtime.jobs.history import History, learned, left_of
from h3runtime.jobs.table import Job, JobTable, Status


class Outlook:
    """Of one server. Safe to use from any thread."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._history = History(table.store)
        self._facts: EngineFacts | None = None

    def engine_loaded(self, facts: EngineFacts) -> None:
        """What predictions are about from now on."""
        self._facts = facts

    def learn(self, job: Job) -> None:
        """From one that succeeded; not from the first after a start."""
        if job.clip is None or job.first_after_start or self._facts is None:
            return
        timings = dict(job.clip.timings)
        if job.spec.reuse is not None:
            # Which steps were reused was foretold at best: its seconds are no measure of that work.
            timings.pop("sampling", None)
        if (work := learned(job.work, timings)) is not None:
            self._history.learn(work, job.checkpoint or self._facts.checkpoint, self._facts.device)

    def predict(self, work: Work | None) -> dict[str, float] | None:
        """Seconds by stage and `total`; None if that can't be told."""
        return self._history.predict(work, self._facts) if work is not None and self._facts is not None else None

    def rest(self, job: Job, elapsed: float) -> float | None:
        """Seconds that a computing job still takes after `elapsed` ones."""
        seconds = self.predict(job.work)
        return None if seconds is None else max(0.0, seconds["total"] - elapsed)

    def waits(self) -> list[tuple[str, float | None]]:
        """How long each waiting job waits, in the order in which they are taken."""
        live = self._table.live()
        waiting = sorted((job for job in live if job.status is Status.QUEUED), key=lambda job: -job.order.priority)
        total = left_of([job for job in live if job.status is Status.RUNNING], self.predict)
        waits = []
        for job in waiting:
            waits.append((job.id, total))
            own = None if total is None else left_of([job], self.predict)
            total = None if total is None or own is None else total + own
        return waits
