"""What the service answers about jobs: one, or a page of them. Types here are what OpenAPI shows.

`app` fills them from `jobs` values; the words are service-contract "The answer (a job)". Fields for what
this version never does (LoRAs, quality levels, skipped steps, evidence) are there with the value that says so, since
clients read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from h3runtime import __version__
from h3runtime.core import (
    FPS,
    Check,
    Clip,
)
from h3runtime.errors import H3Error
from h3runtime.jobs.queue import job_timings
from h3runtime.jobs.table import Job, Status


class OutputAnswer(BaseModel):
    """One clip of a job. `url` is null until it can be fetched."""

    index: int
    seed: str
    output: str
    sha256: str | None
    bytes: int | None
    url: str | None


class ProgressAnswer(BaseModel):
    """Where a job is: `step` of `steps` within `stage`; `fraction` 0..1 of the whole."""

    stage: str
    step: int
    steps: int
    fraction: float
    eta_seconds: float | None


class FailureAnswer(BaseModel):
    """Why a job ended without a clip."""

    code: str
    message: str
    stage: str | None
    step: int | None


class JobAnswer(BaseModel):
    """A job. `status`: queued, running, succeeded, failed, cancelled, expired. Times RFC 3339, UTC; timings seconds."""

    id: str
    status: str
    task: str
    output: str
    url: str | None
    sha256: str | None
    bytes: int | None
    outputs: list[OutputAnswer]
    width: int
    height: int
    frames: int
    seconds: float
    fps: int
    seed: str
    steps: int
    forwards: int | None
    skipped_steps: int
    sampler: str
    scheduler: str
    shift: float
    audio_shift: float
    attention: str | None
    linear: str | None
    quality: str | None
    checkpoint: str | None
    version: str
    prompt: str
    warnings: list[str]
    checks: dict[str, dict[str, Any]]
    first_after_start: bool
    diagnostics: dict[str, Any] | None = Field(
        description="Of a request that asked for it: `step_seconds`; `latents_sha256`; packed `rows` by kind; "
        "`segments` in packed order, whose `source` counts guides or references from 0 and is -1 otherwise; "
        "`conditioning`, seconds and cache hits; `inputs`, what each medium's file holds (`saw`) and what of it went "
        "into the model (`got`); `memory` and `memory_estimate` in bytes; `step_latents`, a file name."
    )
    loras: list[dict[str, Any]]
    evidence: dict[str, Any] | None
    progress: ProgressAnswer
    timings: dict[str, float]
    memory: dict[str, int]
    created_at: str
    started_at: str | None
    finished_at: str | None
    error: FailureAnswer | None


class PageAnswer(BaseModel):
    """Jobs, newest first; `after` with the last id gets the next page."""

    data: list[JobAnswer]
    has_more: bool


def job_answer(job: Job) -> JobAnswer:
    """The job as its client sees it now."""
    spec, clip = job.spec, job.clip
    output = _output_answer(job)
    return JobAnswer(
        id=job.id,
        status=job.status.value,
        task=spec.task.value,
        output=output.output,
        url=output.url,
        sha256=output.sha256,
        bytes=output.bytes,
        outputs=[output],
        width=spec.width,
        height=spec.height,
        frames=spec.frames,
        seconds=spec.frames / FPS,
        fps=FPS,
        seed=output.seed,
        steps=spec.sampling.steps,
        forwards=clip.forwards if clip else None,
        skipped_steps=0,
        sampler=spec.sampling.sampler,
        scheduler=spec.sampling.scheduler,
        shift=spec.sampling.shift,
        audio_shift=spec.sampling.audio_shift,
        attention=clip.attention if clip else spec.attention,
        linear=clip.linear if clip else spec.linear,
        quality=None,
        checkpoint=job.checkpoint,
        version=__version__,
        prompt=spec.prompt,
        warnings=[*job.warnings, *(clip.warnings if clip else ())],
        checks={name: check_answer(check) for name, check in (clip.checks if clip else {}).items()},
        first_after_start=job.first_after_start,
        diagnostics=_plain(clip.diagnostics) if clip else None,
        loras=[],
        evidence=None,
        progress=_progress(job),
        timings=job_timings(job),
        memory=dict(clip.memory) if clip else {},
        created_at=_time(job.created_at),
        started_at=_time(job.started_at) if job.started_at else None,
        finished_at=_time(job.finished_at) if job.finished_at else None,
        error=_failure(job.error) if job.error else None,
    )


def _output_answer(job: Job) -> OutputAnswer:
    clip = job.clip
    return OutputAnswer(
        index=0,
        seed=str(job.spec.sampling.seed),
        output=job.spec.output.name,
        sha256=clip.sha256 if clip else None,
        bytes=clip.bytes if clip else None,
        url=f"/jobs/{job.id}/content" if job.status is Status.SUCCEEDED else None,
    )


def _progress(job: Job) -> ProgressAnswer:
    progress = job.progress
    return ProgressAnswer(
        stage=progress.stage,
        step=progress.step,
        steps=progress.steps,
        fraction=progress.fraction,
        eta_seconds=progress.eta_seconds,
    )


def _failure(error: H3Error) -> FailureAnswer:
    return FailureAnswer(
        code=error.code,
        message=error.message,
        stage=getattr(error, "stage", None),
        step=getattr(error, "step", None),
    )


def check_answer(check: Check) -> dict[str, Any]:
    """Figures and findings of one check, flat."""
    return {**check.figures, "findings": [{"level": level, "message": text} for level, text in check.findings]}


def _plain(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def output_seconds(job: Job) -> float:
    """Seconds of video that a job has made; 0 if it made none."""
    clip: Clip | None = job.clip
    return clip.frames / FPS if clip else 0.0
