"""Jobs as values: what one is, and the table that holds the newest of them in memory.

A `Job` is never changed; the table replaces it. So whoever reads one sees a whole state, from any thread, without a
lock. Written by `queue`; read by `api`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from h3runtime.core import Clip, GenerateSpec, Progress, Work
from h3runtime.errors import H3Error, JobNotFound

KEPT = 1000
"""Ended jobs that are remembered. A job is a few kilobytes; the clips stay on disk either way."""


class Status(StrEnum):
    """`EXPIRED` is a success whose clip has been removed or replaced since."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Order:
    """How a request came, beside what it asks for.

    priority: higher ones are taken first. key: `Idempotency-Key`, "" without one. fingerprint: SHA-256 of the request
    and its uploads, in hex digits. callback_url: who is told of the end. request_id: of the HTTP request.
    """

    priority: int = 0
    key: str = ""
    fingerprint: str = ""
    callback_url: str | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One request and what became of it. Times are UTC; `error` is set when it failed, `clip` when it succeeded.

    checkpoint: `EngineFacts.checkpoint` it was admitted under, or the first one loaded after that. It never changes.
    owner: name of the key that sent it, "" where the server asks for none. order: of what was asked, and its key.
    attempt: how often an engine has begun it. work: what it asks of each stage, None if nobody could tell.
    """

    spec: GenerateSpec
    warnings: tuple[str, ...] = ()
    status: Status = Status.QUEUED
    progress: Progress = field(default_factory=lambda: Progress("queued"))
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started_at: datetime | None = None
    finished_at: datetime | None = None
    clip: Clip | None = None
    error: H3Error | None = None
    first_after_start: bool = False
    checkpoint: str | None = None
    owner: str = ""
    order: Order = Order()  # frozen
    attempt: int = 0
    work: Work | None = None

    @property
    def id(self) -> str:
        return self.spec.job_id

    @property
    def queue_seconds(self) -> float | None:
        """How long it waited; None while it waits."""
        until = self.started_at or self.finished_at
        return None if until is None else (until - self.created_at).total_seconds()

    @property
    def total_seconds(self) -> float | None:
        """From its arrival to its end; None before."""
        return None if self.finished_at is None else (self.finished_at - self.created_at).total_seconds()


class JobTable:
    """Jobs in order of arrival. Safe to use from any thread."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._watchers: dict[str, list[Callable[[], None]]] = {}

    def add(self, job: Job) -> None:
        with self._lock:
            self._jobs[job.id] = job
            ended = [other.id for other in self._jobs.values() if other.status.ended]
            for job_id in ended[: max(0, len(ended) - self._kept)]:
                del self._jobs[job_id]

    def get(self, job_id: str) -> Job:
        """The job as it is now. `JobNotFound` for an id that was never given or is forgotten."""
        with self._lock:
            if job_id not in self._jobs:
                raise JobNotFound(f"there is no job {job_id!r:.60}")
            return self._jobs[job_id]

    def all(self) -> list[Job]:
        """Newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def page(self, limit: int, after: str | None) -> tuple[list[Job], bool]:
        """Up to `limit` jobs, newest first, older than the job `after`; and whether there are more."""
        with self._lock:
            jobs = self.all()
            if after is not None:
                self.get(after)
                jobs = jobs[[job.id for job in jobs].index(after) + 1 :]
        return jobs[:limit], len(jobs) > limit

    def change(self, job_id: str, **changes: Any) -> Job:
        """Replace a job's fields. A job that has ended only changes to expired: the first end stands."""
        with self._lock:
            before = self.get(job_id)
            if before.status.ended and changes.get("status") is not Status.EXPIRED:
                return before
            after = self._jobs[job_id] = replace(before, **changes)
            ringing = self._watchers.pop(job_id, []) if after.status.ended else []
        for ring in ringing:
            ring()
        return after

    def watch(self, job_id: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` once when the job ends (now, if it has), from whichever thread ends it. Returns an undo."""
        with self._lock:
            if not self.get(job_id).status.ended:
                self._watchers.setdefault(job_id, []).append(ring)
                return lambda: self._unwatch(job_id, ring)
        ring()
        return lambda: None

    def _unwatch(self, job_id: str, ring: Callable[[], None]) -> None:
        with self._lock:
            watchers = self._watchers.get(job_id, [])
            if ring in watchers:
                watchers.remove(ring)
