"""The bounded queue as `api` uses it: admit, cancel, delete, and ask how long it will take.

What happens to a job from its turn on is `course`'s. Higher priority first, first come first served within one. A job
is in the store before anybody hears of it, so what waits is in line again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from h3runtime.core import GenerateSpec, Progress, Work
from h3runtime.errors import Draining, JobNotFound, QueueFull
from h3runtime.jobs.clock import Clock
from h3runtime.jobs.course import Course
from h3runtime.jobs.files import Folders
from h3runtime.jobs.keeper import Keeper
from h3runtime.jobs.names import OutputNames
from h3runtime.jobs.table import Job, JobTable, Order, Status


class JobQueue(Course):
    """Safe to use from any thread. `on_waiting` is called when there is work to take, `on_stop` with the id of a
    computing job that must stop."""

    def __init__(self, table: JobTable, folders: Folders, limit: int, clock: Clock | None = None) -> None:
        super().__init__(table, folders, clock or Clock())
        self.limit = limit
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_stop: Callable[[str], None] = lambda _: None
        self._coming: set[str] = set()
        self._names = OutputNames(table)
        self._keeper = Keeper(self.sweep, self.tick, self._retention.pause)

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> str | None:
        return self._running

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        """Tell of the jobs that ended while the queue was made, and begin to sweep."""
        super().start()
        self._keeper.start()

    def check_room(self) -> None:
        """Raise what `admit` would raise for want of room, before any work is done for the request."""
        self.table.store.require_in_place()
        with self._changed:
            if self._closed:
                raise Draining("the server is shutting down and takes no new jobs")
            # The limit counts jobs that wait; with the engine idle, the first in line is as good as taken.
            if len(self._line) + len(self._coming) >= self.limit + (self._running is None):
                raise QueueFull(f"{self.limit} jobs are waiting already")

    def promise_outputs(
        self, outputs: frozenset[Path], overwrite: bool, owner: str | None = None
    ) -> AbstractContextManager[None]:
        """Hold names while a request is being admitted. `OutputExists` if a file, a live job or a request has one;
        with `overwrite`, if another than `owner` has the clip."""
        return self._names.promise(outputs, overwrite, owner)

    def admit(
        self,
        spec: GenerateSpec,
        warnings: tuple[str, ...],
        checkpoint: str | None = None,
        *,
        owner: str = "",
        order: Order = Order(),  # noqa: B008  # frozen
        work: Work | None = None,
    ) -> Job:
        """Put a job in line. Its outputs must have been promised. `Draining`, `QueueFull` if there is no room;
        `DiskFull`, `NotReady` if it can't be kept.

        checkpoint: what the client was told is loaded; None for whatever will be.
        """
        progress = Progress("queued", steps=spec.sampling.steps)
        job = Job(
            spec,
            warnings,
            progress=progress,
            created_at=self._clock.now(),
            checkpoint=checkpoint,
            owner=owner,
            order=order,
            work=work,
        )
        with self._changed:
            self.check_room()
            self._coming.add(job.id)
        try:
            # Not under the lock: the disk takes its time.
            self.table.add(job)
            with self._changed:
                self._line.add(job)
                self._unheld.add(job.id)
                self._arrived[job.id] = self._clock.steady()
        finally:
            with self._changed:
                self._coming.discard(job.id)
                self._changed.notify_all()
        self.on_waiting()
        return job

    def cancel(self, job_id: str) -> bool:
        """A waiting job ends at once. True if the job is computing, so that the engine must be told."""
        with self._changed:
            # One that has just been kept is in line in a moment.
            self._changed.wait_for(lambda: job_id not in self._coming)
            if job_id not in self._line:
                if self._running != job_id:
                    return False
                # Kept, so that a crash in the next moment doesn't bring it back.
                self.table.change(job_id, stopping=True)
                return True
            self._line.remove(job_id)
        self._end(job_id, Status.CANCELLED)
        return False

    def delete(self, job_id: str) -> Job:
        """Stop the job if need be, wait until nothing works on it, and remove it with all its files; the job as it was
        last. Blocks for as long as a stop takes. `JobNotFound`."""
        job = self.table.get(job_id)
        with self._changed:
            self._doomed.setdefault(job_id, None)
        try:
            if self.cancel(job_id):
                self.on_stop(job_id)
            with self._changed:
                self._changed.wait_for(lambda: self._running != job_id)
                job = self._doomed.get(job_id) or self.table.get(job_id)
            self._retention.remove(job_id)
        except JobNotFound:
            pass  # Another request that deletes it was first.
        finally:
            with self._changed:
                self._doomed.pop(job_id, None)
        return job

    def preview_of(self, job_id: str) -> Path | None:
        """The newest look at the clip, a PNG; None while there is none."""
        return self._previews.path_of(job_id)

    def sweep(self) -> None:
        """Let clips and rows go whose time is over, and find those that somebody took away."""
        self._retention.sweep()

    def predict(self, work: Work | None) -> dict[str, float] | None:
        """Seconds by stage and `total` that a request would take here, by what others took; None if that can't be
        told."""
        return self._outlook.predict(work)

    def tick(self) -> None:
        """What is to be done about once a second: write what isn't written, and tell waiting jobs how long."""
        self.table.flush()
        for job_id, eta in self._outlook.waits():
            with self._changed:
                if job_id in self._line and not self._closed:
                    self._tell_wait(self.table.get(job_id), eta)

    def _tell_wait(self, job: Job, eta: float | None) -> None:
        known = job.progress.eta_seconds
        # By the second: less is no news.
        if eta is not known and (eta is None or known is None or abs(eta - known) >= 1):
            self.table.change(job.id, progress=replace(job.progress, eta_seconds=eta))

    def close(self) -> None:
        """Take no more jobs and hand out none; those that wait stay in line for the next process."""
        with self._changed:
            self._closed = True
        self.table.wake()

    def stop(self) -> None:
        """Nobody works on a job any more: end the keeper, and write what the store lacks."""
        self.close()
        self._keeper.stop()
        self.table.flush()

    def wait_until_idle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._running is None, seconds)
