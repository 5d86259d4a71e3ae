"""What the service answers about a request that it didn't queue: sizes, time, memory, disk, and if it would be taken.

`routes` fill it from what `admission` found (`Outlook`) and from what lies ahead in the queue (`Ahead`). Seconds come
from the history of this machine, and are null where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from h3runtime.api.admission import Outlook
from h3runtime.core import FPS
from h3runtime.errors import H3Error
from h3runtime.jobs.history import Predict, left_of
from h3runtime.jobs.table import Job, Status


@dataclass(frozen=True, slots=True)
class Ahead:
    """The queue as a request meets it. live: jobs that wait or compute. limit: jobs that may wait. free_bytes: of the
    disk."""

    live: tuple[Job, ...]
    limit: int
    free_bytes: int
    predict: Predict


class DiskAnswer(BaseModel):
    """Bytes that the job may write, and that are free."""

    needed_bytes: int
    free_bytes: int


class QueueAnswer(BaseModel):
    """Jobs that wait now, how many may, and seconds until this one would begin; null if that can't be told."""

    waiting: int
    limit: int
    eta_seconds: float | None


class ReasonAnswer(BaseModel):
    """Why a request would not be taken now."""

    code: str
    message: str


class EstimateAnswer(BaseModel):
    """What a request would take. `rows`: packed rows by segment and `total`. `forwards`: less the steps that a
    `cache_mode` is likely to reuse, as its schedule tells; what `first_block` will reuse nobody can tell.
    `memory`: bytes by part, of
    `predicted_peak_bytes` in all at the worst moment. `would_fit`: what to ask for instead, if memory is short."""

    task: Literal["t2va", "i2va", "l2va", "fl2va", "ref2va"]
    width: int
    height: int
    frames: int
    seconds: float
    rows: dict[str, int]
    forwards: int
    predicted_seconds: dict[str, float] | None = Field(description="By stage, and `total`; null without a history.")
    predicted_peak_bytes: int
    capacity_bytes: int
    memory: dict[str, int]
    disk: DiskAnswer
    queue: QueueAnswer
    admitted: bool
    reason: ReasonAnswer | None
    would_fit: str | None
    warnings: list[str]


def estimate_answer(outlook: Outlook, ahead: Ahead) -> dict[str, Any]:
    """An `EstimateAnswer` as plain values."""
    spec, estimate = outlook.spec, outlook.estimate
    predicted = ahead.predict(estimate.work)
    return {
        "task": spec.task.value,
        "width": spec.width,
        "height": spec.height,
        "frames": spec.frames,
        "seconds": spec.frames / FPS,
        "rows": {**estimate.rows, "total": sum(estimate.rows.values())},
        "forwards": estimate.forwards,
        "predicted_seconds": None if predicted is None else dict(predicted),
        "predicted_peak_bytes": estimate.peak_bytes,
        "capacity_bytes": estimate.capacity_bytes,
        "memory": dict(estimate.memory),
        "disk": {"needed_bytes": outlook.needed_bytes, "free_bytes": ahead.free_bytes},
        "queue": _queue(outlook, ahead),
        "admitted": outlook.refusal is None,
        "reason": _reason(outlook.refusal),
        "would_fit": estimate.would_fit or None,
        "warnings": list(outlook.warnings),
    }


def _queue(outlook: Outlook, ahead: Ahead) -> dict[str, Any]:
    waiting = sum(job.status is Status.QUEUED for job in ahead.live)
    before = [job for job in ahead.live if job.status is Status.RUNNING or job.order.priority >= outlook.priority]
    return {"waiting": waiting, "limit": ahead.limit, "eta_seconds": left_of(before, ahead.predict)}


def _reason(refusal: H3Error | None) -> dict[str, str] | None:
    return None if refusal is None else {"code": refusal.code, "message": refusal.message}
