"""The job that the engine has, as its supervisor follows it: who wants it stopped, whether it is late, how it ends.

Knows no process and no queue. Used by `supervisor`, from its own thread but for `wish_stop`; numbers are in `limits`.
"""

from __future__ import annotations

import time

from h3runtime.core import Progress
from h3runtime.errors import EngineDead, H3Error, Interrupted, JobCancelled, JobError, OutOfMemory
from h3runtime.jobs.limits import Limits, Running


class InHand:
    """One job at a time, or none."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: Running | None = None
        self._wishes: dict[str, H3Error] = {}

    @property
    def job_id(self) -> str | None:
        return self._running.job_id if self._running else None

    def begin(self, job_id: str) -> None:
        self._running = Running(job_id)

    def done(self) -> None:
        """It has its end, if there was one."""
        if self._running is not None:
            self._wishes.pop(self._running.job_id, None)
        self._running = None

    def advance(self, progress: Progress) -> None:
        """Of no effect without a job."""
        if self._running is not None:
            self._running.advance(progress)

    def wish_stop(self, job_id: str, wish: H3Error) -> None:
        """wish: what the job is to end with. From any thread. By name: between the queue's answer and this the next job
        may have begun, and a job that the queue has just handed out isn't here yet."""
        self._wishes.setdefault(job_id, wish)

    def stop_due(self) -> str | None:
        """The job, if the engine must be asked to stop it and hasn't been; it counts as asked now."""
        job = self._running
        if job is None or job.stop_sent is not None or job.job_id not in self._wishes:
            return None
        job.stop_sent = time.monotonic()
        return job.job_id

    def overdue(self) -> H3Error | None:
        """Why the engine must go, if it must for the job's sake."""
        job = self._running
        return None if job is None else job.overdue(self._limits, self._wishes.get(job.job_id))

    def end_told(self, job_id: str, error: H3Error) -> H3Error:
        """What the job ends with of which the engine has told `error`."""
        wish = self._wishes.get(job_id)
        if isinstance(error, JobCancelled) and wish is not None:
            return wish
        if isinstance(error, JobError) and error.stage is None and self._running is not None:
            error.stage, error.step = self._running.stage, self._running.step
        return error

    def end_lost(self, job_id: str, why: H3Error, *, is_leaving: bool) -> H3Error:
        """What the job ends with whose engine is gone. Whoever wanted it stopped gets what he asked for, whatever else
        went wrong."""
        if (wish := self._wishes.get(job_id)) is not None:
            return wish
        if is_leaving:
            return left_behind()
        if isinstance(why, EngineDead | OutOfMemory) and why.stage is None:
            job = self._running or Running(job_id)
            why.stage, why.step = job.stage, job.step
        return why


def left_behind() -> Interrupted:
    return Interrupted("the server shut down before the job was done")
