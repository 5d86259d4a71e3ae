"""What a job is: one request and what became of it, as one frozen value.

A `Job` is never changed; the table replaces it. So whoever reads one sees a whole state, from any thread, without a
lock. Made and replaced by `table` for `queue`; kept by `rows`; read by `api`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from h3runtime.core import Clip, GenerateSpec, Progress, Work
from h3runtime.errors import H3Error


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
    stopping: somebody cancelled it while it computed. expires_at: when its clip goes, set at the end. waited, lasted:
    seconds from its arrival to its beginning and to its end by a clock that nobody sets; None where one process didn't
    see both.
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
    stopping: bool = False
    expires_at: datetime | None = None
    waited: float | None = None
    lasted: float | None = None

    @property
    def id(self) -> str:
        return self.spec.job_id

    @property
    def queue_seconds(self) -> float | None:
        """How long it waited; None while it waits."""
        until = self.started_at or self.finished_at
        return None if until is None else self._since_arrival(until, self.waited)

    @property
    def total_seconds(self) -> float | None:
        """From its arrival to its end; None before."""
        return None if self.finished_at is None else self._since_arrival(self.finished_at, self.lasted)

    def _since_arrival(self, until: datetime, measured: float | None) -> float:
        """Across a restart only the wall clock is left, which may have been set back."""
        return measured if measured is not None else max(0.0, (until - self.created_at).total_seconds())
