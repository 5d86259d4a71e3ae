"""The bounded queue: which jobs wait, which one is computing, and how each one ends.

`api` admits and cancels; the supervisor takes, reports and ends. First come, first served, one at a time. Every way out
ends in `_end`, which also throws away the job's inputs and scraps and tells the log and the metrics.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from h3runtime.core import LATENTS_SUFFIX, STEPS_SUFFIX, BackendChoice, Clip, EngineFacts, GenerateSpec, Progress
from h3runtime.errors import (
    CheckpointChanged,
    Draining,
    H3Error,
    Interrupted,
    JobCancelled,
    JobNotFound,
    Offence,
    OutputExists,
    QueueFull,
)
from h3runtime.jobs.files import Folders
from h3runtime.jobs.table import Job, JobTable, Status

log = structlog.get_logger("h3runtime.jobs")


class JobQueue:
    """Safe to use from any thread. `on_waiting` is called when there is work to take; `on_end` for every ended job."""

    def __init__(self, table: JobTable, folders: Folders, limit: int) -> None:
        self.table = table
        self.folders = folders
        self.limit = limit
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_end: Callable[[Job], None] = lambda _: None
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[str] = deque()
        self._running: str | None = None
        self._promised: set[Path] = set()
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> str | None:
        return self._running

    @property
    def closed(self) -> bool:
        return self._closed

    def check_room(self) -> None:
        """Raise what `admit` would raise for want of room, before any work is done for the request."""
        with self._changed:
            if self._closed:
                raise Draining("the server is shutting down and takes no new jobs")
            # The limit counts jobs that wait; with the engine idle, the first in line is as good as taken.
            if len(self._waiting) >= self.limit + (self._running is None):
                raise QueueFull(f"{self.limit} jobs are waiting already")

    @contextmanager
    def promise_outputs(self, outputs: frozenset[Path], overwrite: bool) -> Iterator[None]:
        """Hold names while a request is being admitted. `OutputExists` if a file, a live job or a request has one."""
        with self._changed:
            self._check_outputs(outputs, overwrite)
            self._promised |= outputs
        try:
            yield
        finally:
            with self._changed:
                self._promised -= outputs

    def admit(self, spec: GenerateSpec, warnings: tuple[str, ...], checkpoint: str | None = None) -> Job:
        """Put a job in line. Its outputs must have been promised. `Draining`, `QueueFull` if there is no room.

        checkpoint: what the client was told is loaded; None for whatever will be.
        """
        with self._changed:
            self.check_room()
            job = Job(spec, warnings, progress=Progress("queued", steps=spec.sampling.steps), checkpoint=checkpoint)
            self.table.add(job)
            self._waiting.append(job.id)
        self.on_waiting()
        return job

    def cancel(self, job_id: str) -> bool:
        """A waiting job ends at once. True if the job is computing, so that the engine must be told."""
        with self._changed:
            if job_id in self._waiting:
                self._waiting.remove(job_id)
            else:
                return self._running == job_id
        self._end(job_id, Status.CANCELLED)
        return False

    def close(self) -> None:
        """Take no more jobs, and end those that wait: they live in memory only and won't be there after a restart."""
        with self._changed:
            self._closed = True
        self.fail_waiting(Interrupted("the server shut down before the job began"))

    def wait_until_idle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._running is None, seconds)

    # For the supervisor.

    def take(self, facts: EngineFacts, first: bool) -> Job | None:
        """The next job, now `running`; None if nothing waits or one is computing.

        Those that were admitted under another checkpoint than the loaded one fail: they would make another clip.
        """
        self._hold_to(facts.checkpoint)
        with self._changed:
            if self._running is not None or not self._waiting:
                return None
            job_id = self._running = self._waiting.popleft()
        changes = {"status": Status.RUNNING, "started_at": datetime.now(UTC), "first_after_start": first}
        job = self.table.change(job_id, **changes, spec=_with_backends(self.table.get(job_id).spec, facts))
        log.info("generate_start", **_told(job))
        return job

    def progressed(self, job_id: str, progress: Progress) -> None:
        """Keep the newest sign of life; the fraction never falls, whatever the engine says."""
        fraction = max(progress.fraction, self.table.get(job_id).progress.fraction)
        self.table.change(job_id, progress=replace(progress, fraction=min(1.0, fraction)))

    def succeeded(self, job_id: str, clip: Clip) -> None:
        self._expire_owner_of(clip.output, job_id)
        steps = self.table.get(job_id).spec.sampling.steps
        self._end(job_id, Status.SUCCEEDED, clip=clip, progress=Progress("done", steps, steps, 1.0, 0.0))

    def failed(self, job_id: str, error: H3Error) -> None:
        """The job ended without a clip; a cancelled one is not a failure."""
        if isinstance(error, JobCancelled):
            self._end(job_id, Status.CANCELLED)
        else:
            self._end(job_id, Status.FAILED, error=error)

    def fail_waiting(self, error: H3Error) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    return
                job_id = self._waiting.popleft()
            self.failed(job_id, error)

    def _hold_to(self, checkpoint: str) -> None:
        changed = []
        with self._changed:
            for job in [self.table.get(job_id) for job_id in self._waiting]:
                if job.checkpoint is None:
                    self.table.change(job.id, checkpoint=checkpoint)
                elif job.checkpoint != checkpoint:
                    self._waiting.remove(job.id)
                    changed.append(job)
        for job in changed:
            self.failed(job.id, CheckpointChanged(f"admitted under {job.checkpoint}, but {checkpoint} is loaded now"))

    def _end(self, job_id: str, status: Status, **changes: Any) -> None:
        self.folders.forget(job_id)
        if status is Status.SUCCEEDED:
            self.folders.trim_tails()
        else:
            self.folders.drop_tail(job_id)
        with self._changed:
            if self._running == job_id:
                self._running = None
            job = self.table.change(job_id, status=status, finished_at=datetime.now(UTC), **changes)
            self._changed.notify_all()
        _log_end(job)
        self.on_end(job)

    def _check_outputs(self, outputs: frozenset[Path], overwrite: bool) -> None:
        live = [outputs_of(job.spec) for job in self.table.all() if not job.status.ended]
        held = self._promised.union(*live)
        for output in sorted(outputs):
            if output in held:
                raise _taken(output, "another job that hasn't ended holds this name", "a name that no live job holds")
            if output.exists() and not overwrite:
                raise _taken(output, "a file of this name exists", "a new name, or overwrite: true")

    def _expire_owner_of(self, output: Path, new_owner: str) -> None:
        for job in self.table.all():
            if job.status is Status.SUCCEEDED and job.spec.output == output and job.id != new_owner:
                # The table may have forgotten it meanwhile, for a new job.
                with suppress(JobNotFound):
                    self.table.change(job.id, status=Status.EXPIRED)
                self.folders.drop_tail(job.id)


def outputs_of(spec: GenerateSpec) -> frozenset[Path]:
    """Every file that a job writes under a final name."""
    asked = {"": True, LATENTS_SUFFIX: spec.save_latents, STEPS_SUFFIX: spec.diagnostic_latents}
    return frozenset(spec.output.with_name(spec.output.name + suffix) for suffix, is_asked in asked.items() if is_asked)


def _taken(output: Path, why: str, legal: str) -> OutputExists:
    return OutputExists(f"output {output.name!r}: {why}", [Offence("output", why, legal)])


def _with_backends(spec: GenerateSpec, facts: EngineFacts) -> GenerateSpec:
    return replace(spec, attention=_name(spec.attention, facts.attention), linear=_name(spec.linear, facts.linear))


def _name(asked: str | None, choice: BackendChoice) -> str:
    return asked or choice.default


def _told(job: Job) -> dict[str, Any]:
    """What the log says of a job at its start and at its end: no prompt, no path."""
    spec = job.spec
    return {
        "job_id": job.id,
        "task": str(spec.task),
        "output": spec.output.name,
        "seed": str(spec.sampling.seed),
        "attention": spec.attention,
        "linear": spec.linear,
        "width": spec.width,
        "height": spec.height,
        "frames": spec.frames,
        "steps": spec.sampling.steps,
        "timings": job_timings(job),
    }


def _log_end(job: Job) -> None:
    if job.status is Status.SUCCEEDED and job.clip is not None:
        log.info("generate_complete", **_told(job), sha256=job.clip.sha256, bytes=job.clip.bytes)
        return
    error = job.error
    stage, step = getattr(error, "stage", None), getattr(error, "step", None)
    code, message = (error.code, error.message) if error else ("cancelled", "cancelled")
    log.info("generate_failed", **_told(job), code=code, message=message, stage=stage, step=step)


def job_timings(job: Job) -> dict[str, float]:
    """Seconds by stage, with `queue` and `total` as the server saw them; what hasn't ended is absent."""
    outer = {"queue": job.queue_seconds, "total": job.total_seconds}
    stages = dict(job.clip.timings) if job.clip else {}
    ends = {name: seconds for name, seconds in outer.items() if seconds is not None}
    return {"queue": ends.pop("queue"), **stages, **ends} if "queue" in ends else stages | ends
