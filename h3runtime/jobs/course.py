"""What becomes of a job from its turn to its end: taken, told of, published, interrupted, ended.

The supervisor takes, reports and ends; `queue`, which is this and more, admits and deletes. Every way out ends in
`_settle`, which also throws away the job's inputs and scraps, and `_tell_end`, which tells the log and the metrics.
What an earlier process left is taken up at once (`_restart`): results are published, the rest is put in line.

A deletion wins against every end: the id of a job that is being deleted is in `_doomed`, and its end is told to nobody
but who deletes it. Locks: `retention.files` before `_changed` before those of the table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from h3runtime.core import BackendChoice, Clip, EngineFacts, GenerateSpec, Progress
from h3runtime.errors import (
    CheckpointChanged,
    H3Error,
    Interrupted,
    JobCancelled,
    JobNotFound,
)
from h3runtime.jobs import output_rows
from h3runtime.jobs.clock import Clock
from h3runtime.jobs.files import Folders
from h3runtime.jobs.limits import FIRST_STAGE
from h3runtime.jobs.line import Line
from h3runtime.jobs.log_lines import log_end, log_start
from h3runtime.jobs.outlook import Outlook
from h3runtime.jobs.outputs import Placement, as_final, placements
from h3runtime.jobs.previews import Previews
from h3runtime.jobs.publish import Lost, place, withdraw
from h3runtime.jobs.retention import Retention
from h3runtime.jobs.table import Job, JobTable, Status
from h3runtime.media.delivery import disk_error

ATTEMPTS = 2
"""How often an engine may begin a job: once more after an interruption (service-contract, Jobs)."""

log = structlog.get_logger("h3runtime.jobs")


class Course:
    """Safe to use from any thread. `on_end` is called for every ended job, a deleted one too; `on_progress` at each
    sign of life. Both may be set until `start`."""

    def __init__(self, table: JobTable, folders: Folders, clock: Clock) -> None:
        self.table = table
        self.folders = folders
        self.on_end: Callable[[Job], None] = lambda _: None
        self.on_progress: Callable[[Job], None] = lambda _: None
        self._clock = clock
        self._retention = Retention(table, folders, clock)
        self._previews = Previews(folders)
        self._outlook = Outlook(table)
        self._changed = threading.Condition(threading.RLock())
        self._line = Line()
        self._running: str | None = None
        self._began = 0.0
        self._inherited: set[str] = set()
        self._held_to: str | None = None
        self._unheld: set[str] = set()
        self._arrived: dict[str, float] = {}
        self._doomed: dict[str, Job | None] = {}
        self._ended_early: list[Job] = []
        self._closed = self._started = False
        self._restart()

    def start(self) -> None:
        """Tell of the jobs that ended while this was made."""
        self._started = True
        early, self._ended_early = self._ended_early, []
        for job in early:
            self._tell(job)

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
            self.failed(job_id, disk_error(error, FIRST_STAGE))
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
            progress=replace(job.progress, stage=FIRST_STAGE, eta_seconds=self._outlook.rest(job, 0.0)),
            # An earlier server may have kept its scratch elsewhere.
            spec=replace(_with_backends(job.spec, facts), scratch=self.folders.scratch_of(job_id)),
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
            why = f"admitted under {job.checkpoint}, but {checkpoint} is loaded now"
            self._end(job.id, Status.FAILED, error=CheckpointChanged(why))

    def _requeue(self, job_id: str) -> None:
        """Back into the line, where the next process finds it. Its inputs stay."""
        self.folders.drop_scraps(job_id)
        with self._changed:
            if job_id in self._doomed:
                self._end(job_id, Status.CANCELLED)
                return
            fresh = Progress("queued", steps=self.table.get(job_id).spec.sampling.steps)
            job = self.table.change(
                job_id, status=Status.QUEUED, progress=fresh, started_at=None, waited=None, clip=None
            )
            self._line.add(job)
            self._let_go(job_id)
        log.info("job_requeued", job_id=job_id, request_id=job.order.request_id, attempt=job.attempt)
        self.table.wake_watchers(job_id)

    def _end(self, job_id: str, status: Status, **changes: Any) -> None:
        """Of no effect for one that was deleted between the line and its end."""
        with suppress(JobNotFound):
            self._tell_end(self._settle(job_id, status, (), changes))

    def _settle(self, job_id: str, status: Status, placed: tuple[Placement, ...], changes: dict[str, Any]) -> Job:
        self.folders.forget(job_id)
        if status is not Status.SUCCEEDED:
            self.folders.drop_tail(job_id)
        with self._changed:
            try:
                return self._ended(job_id, status, placed, changes)
            finally:
                self._arrived.pop(job_id, None)
                self._let_go(job_id)

    def _tell_end(self, job: Job) -> None:
        self.folders.trim_tails()
        log_end(job)
        if not self._started:
            self._ended_early.append(job)
        else:
            self._tell(job)

    def _tell(self, job: Job) -> None:
        try:
            self.on_end(job)
        except Exception as error:
            # Who hears of an end must not undo it, nor take the engine with him.
            log.error("end_not_told", job_id=job.id, exc_info=error)

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
