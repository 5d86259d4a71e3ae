"""A job as OpenAI's clients know one: a `video`. Fed by `routes`; the words are service-conventions §1.6.

queued     queued          failed      failed, with the error
running    in_progress     cancelled   failed, with the code `cancelled`
succeeded  completed       expired     completed, with `expires_at` in the past
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from h3runtime.api.openai.creation import MODELS
from h3runtime.core import FPS
from h3runtime.jobs.table import Job, Status

STATUSES: Mapping[Status, str] = {
    Status.QUEUED: "queued",
    Status.RUNNING: "in_progress",
    Status.SUCCEEDED: "completed",
    Status.EXPIRED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",
}
ALMOST = 99
"""Percent that a job which hasn't ended has at most."""


class VideoError(BaseModel):
    """Why there is no video."""

    code: str
    message: str


class VideoAnswer(BaseModel):
    """A video. Times are whole seconds since 1970, `progress` is in percent, `size` and `seconds` are what is made."""

    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int = Field(ge=0, le=100)
    created_at: int
    completed_at: int | None
    expires_at: int | None
    prompt: str
    size: str
    seconds: str
    remixed_from_video_id: str | None
    error: VideoError | None


class VideoPage(BaseModel):
    """Videos; `after` with `last_id` gets the next ones."""

    object: Literal["list"]
    data: list[VideoAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVideo(BaseModel):
    """What is left of a video."""

    id: str
    object: Literal["video.deleted"]
    deleted: bool


def video_of(job: Job) -> dict[str, Any]:
    """A `VideoAnswer`, as a dictionary."""
    spec = job.spec
    return {
        "id": job.id,
        "object": "video",
        "model": MODELS[0],
        "status": STATUSES[job.status],
        "progress": _percent(job),
        "created_at": _seconds(job.created_at),
        "completed_at": _seconds(job.finished_at),
        "expires_at": _seconds(_expiry(job)),
        "prompt": spec.prompt,
        "size": f"{spec.width}x{spec.height}",
        "seconds": str(spec.frames / FPS).removesuffix(".0"),
        "remixed_from_video_id": None,
        "error": _error(job),
    }


def page_of(jobs: Sequence[Job], has_more: bool) -> dict[str, Any]:
    """A `VideoPage`, as a dictionary."""
    first, last = (jobs[0].id, jobs[-1].id) if jobs else (None, None)
    data = [video_of(job) for job in jobs]
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def deleted(job_id: str) -> dict[str, Any]:
    return {"id": job_id, "object": "video.deleted", "deleted": True}


def _percent(job: Job) -> int:
    if job.status in (Status.SUCCEEDED, Status.EXPIRED):
        return 100
    return max(0, min(ALMOST, int(100 * job.progress.fraction)))


def _expiry(job: Job) -> datetime | None:
    """When the clip goes, or went: one that was replaced is gone earlier than it would have been."""
    if job.status is Status.EXPIRED and (job.expires_at is None or job.expires_at > datetime.now(UTC)):
        return job.finished_at
    return job.expires_at if job.status in (Status.SUCCEEDED, Status.EXPIRED) else None


def _error(job: Job) -> dict[str, str] | None:
    if job.status is Status.CANCELLED:
        return {"code": "cancelled", "message": "the job was cancelled"}
    if job.status is Status.FAILED and job.error is not None:
        return {"code": job.error.code, "message": job.error.message}
    return None


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
