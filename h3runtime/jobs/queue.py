"""The bounded queue: which jobs wait, which one is computing, and how each one ends.

`api` admits, cancels and deletes; the supervisor takes, reports and ends; `keeper` sweeps. Higher priority first, first
come first served within one, one at a time. Every way out ends in `_end`, which also throws away the job's inputs and
scraps and tells the log and the metrics. All is in the store before anybody hears of it, so what waits, and what was
computing, is in line again after a restart (`restart`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from h3runtime.core import BackendChoice, Clip, EngineFacts, GenerateSpec, Progress, Work
from h3runtime.errors import (
    CheckpointChanged,
    Draining,
    H3Error,
    Interrupted,
    JobCancelled,
    JobNotFound,
    QueueFull,
)
from h3runtime.jobs import output_rows
from h3runtime.jobs.clock import Clock
from h3runtime.jobs.files import Folders
from h3runtime.jobs.keeper import Keeper
from h3runtime.jobs.line import Line
from h3runtime.jobs.log_lines import job_timings, log_end, log_start
from h3runtime.jobs.names import OutputNames
from h3runtime.jobs.outlook import Outlook
from h3runtime.jobs.outputs import Placement, as_final, outputs_of, placements
from h3runtime.jobs.previews import Previews
from h3runtime.jobs.publish import Lost, place, withdraw
from h3runtime.jobs.reservations import Reservations
from h3runtime.jobs.retention import Retention
from h3runtime.jobs.table import Job, JobTable, Order, Status
from h3runtime.media.delivery import disk_error

__all__ = ["ATTEMPTS", "JobQueue", "job_timings", "outputs_of"]

ATTEMPTS = 2
"""How often an engine may begin a job: once more after an interruption (service-contract, Jobs)."""

log = structlog.get_logger("h3runtime.jobs")


class JobQueue:
    """Safe to use from any thread. `on_waiting` is called when there is work to take; `on_end` for every ended job, a
    deleted one too; `on_progress` at each sign of life; `on_stop` with the id of a computing job that must stop."""

    def __init__(self, table: JobTable, folders: Folders, limit: int, clock: Clock | None = None) -> None:
        self.table = table
        self.folders = folders
        self.limit = limit
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_end: Callable[[Job], None] = lambda _: None
        self.on_progress: Callable[[Job], None] = lambda _: None
        self.on_stop: Callable[[str], None] = lambda _: None
        self._clock = clock or Clock()
        self._retention = Retention(table, folders, self._clock)
        self._previews = Previews(folders)
        self._keeper = Keeper(self.sweep, self.tick, self._retention.pause)
        self._changed = threading.Condition(threading.RLock())
        self._line = Line()
        self._running: str | None = None
        self._coming: set[str] = set()
        self._inherited: set[str] = set()
        self._began = 0.0
        self._held_to: str | None = None
        self._unheld: set[str] = set()
        self._outlook = Outlook(table)
        self._names = OutputNames(table)
        self._arrived: dict[str, float] = {}
        self._doomed: dict[str, Job | None] = {}
        self._ended_early: list[Job] = []
        self._closed = self._started = False
        self._reservations = Reservations(lambda: self._closed)
        self._restart()

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
        self._started = True
        for job in self._ended_early:
            self.on_end(job)
        self._ended_early.clear()
        self._keeper.start()

    def check_room(self) -> None:
        """Raise what `admit` would raise for want of room, before any work is done for the request."""
        with self._changed:
            if self._closed:
                raise Draining("the server is shutting down and takes no new jobs")
            # The limit counts jobs that wait; with the engine idle, the first in line is as good as taken.
            if len(self._line) + len(self._coming) >= self.limit + (self._running is None):
                raise QueueFull(f"{self.limit} jobs are waiting already")

    def reserve(self, owner: str, key: str) -> AbstractContextManager[None]:
        """Be the only one who admits under this `Idempotency-Key`; blocks while another does. "" reserves nothing."""
        return self._reservations.hold(owner, key)

    def promise_outputs(self, outputs: frozenset[Path], overwrite: bool) -> AbstractContextManager[None]:
        """Hold names while a request is being admitted. `OutputExists` if a file, a live job or a request has one."""
        return self._names.promise(outputs, overwrite)

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

    def ahead_of(self, job_id: str) -> float | None:
        """Seconds until a waiting job begins: the rest of what computes, and what is before it. None if that can't be
        told."""
        return dict(self._outlook.waits()).get(job_id)

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
        self._reservations.wake()
        self.table.wake()

    def stop(self) -> None:
        """Nobody works on a job any more: end the keeper, and write what the store lacks."""
        self.close()
        self._keeper.stop()
        self.table.flush()

    def wait_until_idle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._running is None, seconds)

    # For the supervisor.

    def take(self, facts: EngineFacts, first: bool) -> Job | None:
        """The next job, now `running`; None if nothing waits or one is computing.

        Those that were admitted under another checkpoint than the loaded one fail: they would make another clip.
        """
        if self._closed:
            return None
        self._hold_to(facts.checkpoint)
        with self._changed:
            if self._running is not None or not self._line:
                return None
            job_id = self._running = self._line.pop()
        try:
            self.folders.clear_scratch(job_id)
        except OSError as error:
            self.failed(job_id, disk_error(error, "conditioning"))
            return None
        job = self._begin(job_id, facts, first)
        log_start(job)
        return job

    def progressed(self, job_id: str, progress: Progress) -> None:
        """Keep the newest sign of life; the fraction never falls, whatever the engine says."""
        if progress.preview is not None:
            self._previews.keep(job_id, progress.preview)
        job = self.table.get(job_id)
        fraction = min(1.0, max(progress.fraction, job.progress.fraction))
        eta = progress.eta_seconds
        if eta is None:
            eta = self._outlook.rest(job, self._clock.steady() - self._began)
        shown = replace(progress, fraction=fraction, eta_seconds=eta, preview=None)
        self.on_progress(self.table.change(job_id, progress=shown))

    def succeeded(self, job_id: str, clip: Clip) -> None:
        """Publish what the engine staged. Another end is told where that fails."""
        job = self.table.change(job_id, clip=as_final(clip, self.table.get(job_id).spec))
        self._publish(job)

    def failed(self, job_id: str, error: H3Error) -> None:
        """The job ended without a clip; a cancelled one is not a failure, and an interrupted one may begin again."""
        job = self.table.get(job_id)
        is_interrupted = isinstance(error, Interrupted)
        if is_interrupted and job.attempt < ATTEMPTS and not job.stopping:
            self._requeue(job_id)
        elif isinstance(error, JobCancelled) or (is_interrupted and job.stopping):
            self._end(job_id, Status.CANCELLED)
        else:
            self._end(job_id, Status.FAILED, error=error)

    def fail_waiting(self, error: H3Error, *, inherited: bool = True) -> None:
        """End those that wait. inherited: those of an earlier process too."""
        with self._changed:
            failing = [job_id for job_id in self._line if inherited or job_id not in self._inherited]
            for job_id in failing:
                self._line.remove(job_id)
        for job_id in failing:
            self._end(job_id, Status.FAILED, error=error)

    def engine_loaded(self, facts: EngineFacts) -> None:
        """What predictions are about from now on."""
        self._outlook.engine_loaded(facts)

    def _restart(self) -> None:
        """Take up what an earlier process left: publish results, put the rest in line, remove what is nobody's."""
        for job in self.table.live():
            if job.status is Status.QUEUED:
                self._line.add(job)
            elif job.clip is not None:
                self._publish(job, resumed=True)
            else:
                at = job.progress
                why = Interrupted("the server ended before the job was done", stage=at.stage, step=at.step)
                self.failed(job.id, why)
        self._inherited = set(self._line)
        self._retention.remove_orphans()

    def _begin(self, job_id: str, facts: EngineFacts, first: bool) -> Job:
        job = self.table.get(job_id)
        arrived = self._arrived.get(job_id)
        self._began = self._clock.steady()
        return self.table.change(
            job_id,
            status=Status.RUNNING,
            started_at=self._clock.now(),
            waited=None if arrived is None else self._began - arrived,
            first_after_start=first,
            attempt=job.attempt + 1,
            spec=_with_backends(job.spec, facts),
        )

    def _publish(self, job: Job, *, resumed: bool = False) -> None:
        """The result is in the row by now, so a new process does this again if this one is killed in it."""
        assert job.clip is not None
        files = tuple(placements(job.spec, job.clip))
        steps = job.spec.sampling.steps
        try:
            with self._retention.files:
                wanted = () if job.id in self._doomed else files
                placed = place(wanted, overwrite=job.spec.overwrite, resumed=resumed)
                self._retention.expire_owners(placed, job.id)
                done = {"progress": Progress("done", steps, steps, 1.0, 0.0)}
                ended = self._settle(job.id, Status.SUCCEEDED, placed, done)
        except Lost:
            self.failed(job.id, Interrupted("the clip was lost before it had its name", stage="mux"))
        except H3Error as error:
            self._end(job.id, Status.FAILED, error=error, clip=None)
        else:
            self._outlook.learn(ended)
            self._tell_end(ended)

    def _hold_to(self, checkpoint: str) -> None:
        changed = []
        with self._changed:
            if self._held_to != checkpoint:
                self._held_to, self._unheld = checkpoint, set(self._line)
            for job in [self.table.get(job_id) for job_id in self._unheld if job_id in self._line]:
                if job.checkpoint is None:
                    self.table.change(job.id, checkpoint=checkpoint)
                elif job.checkpoint != checkpoint:
                    self._line.remove(job.id)
                    changed.append(job)
            self._unheld.clear()
        for job in changed:
            self.failed(job.id, CheckpointChanged(f"admitted under {job.checkpoint}, but {checkpoint} is loaded now"))

    def _requeue(self, job_id: str) -> None:
        """Back into the line, where the next process finds it. Its inputs stay."""
        self.folders.drop_scraps(job_id)
        with self._changed:
            if job_id in self._doomed:
                self._end(job_id, Status.CANCELLED)
                return
            job = self.table.change(
                job_id, status=Status.QUEUED, progress=Progress("queued"), started_at=None, waited=None, clip=None
            )
            self._line.add(job)
            self._let_go(job_id)
        log.info("job_requeued", job_id=job_id, request_id=job.order.request_id, attempt=job.attempt)
        self.table.wake_watchers(job_id)

    def _end(self, job_id: str, status: Status, **changes: Any) -> None:
        self._tell_end(self._settle(job_id, status, (), changes))

    def _settle(self, job_id: str, status: Status, placed: tuple[Placement, ...], changes: dict[str, Any]) -> Job:
        self.folders.forget(job_id)
        if status is not Status.SUCCEEDED:
            self.folders.drop_tail(job_id)
        with self._changed:
            job = self._ended(job_id, status, placed, changes)
            self._arrived.pop(job_id, None)
            self._let_go(job_id)
        return job

    def _tell_end(self, job: Job) -> None:
        self.folders.trim_tails()
        log_end(job)
        if self._started:
            self.on_end(job)
        else:
            self._ended_early.append(job)

    def _ended(self, job_id: str, status: Status, placed: tuple[Placement, ...], changes: dict[str, Any]) -> Job:
        """The job at its end. One that is being deleted ends for nobody but who deletes it."""
        finished, arrived = self._clock.now(), self._arrived.get(job_id)
        changes = changes | {
            "status": status,
            "finished_at": finished,
            "expires_at": self._clock.deadline(finished, self.folders.retention_seconds),
            "lasted": None if arrived is None else self._clock.steady() - arrived,
        }
        if job_id in self._doomed:
            withdraw(placed)
            last = replace(
                self.table.get(job_id), **(changes | {"status": Status.CANCELLED, "clip": None, "error": None})
            )
            self._doomed[job_id] = last
            return last
        if not placed:
            return self.table.change(job_id, **changes)
        return self.table.change(job_id, also=lambda connection: output_rows.own(connection, job_id, placed), **changes)

    def _let_go(self, job_id: str) -> None:
        if self._running == job_id:
            self._running = None
        self._changed.notify_all()


def _with_backends(spec: GenerateSpec, facts: EngineFacts) -> GenerateSpec:
    return replace(spec, attention=_name(spec.attention, facts.attention), linear=_name(spec.linear, facts.linear))


def _name(asked: str | None, choice: BackendChoice) -> str:
    return asked or choice.default
