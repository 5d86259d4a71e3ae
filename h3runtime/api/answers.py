"""What the service answers: a job, a page of jobs, health. Types here are what OpenAPI shows.

`app` fills them from `jobs` values; the words are service-contract "The answer (a job)" and "Health". Fields for what
this version never does (LoRAs, quality levels, skipped steps, evidence) are there with the value that says so, since
clients read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from h3runtime import __version__
from h3runtime.core import (
    FPS,
    MIN_FRAMES,
    MIN_SIDE,
    SIDE_MULTIPLE,
    BackendChoice,
    Check,
    Clip,
    ComponentFacts,
    EngineFacts,
    LoadProgress,
)
from h3runtime.errors import H3Error
from h3runtime.jobs.queue import job_timings
from h3runtime.jobs.supervisor import EngineState, EngineStatus
from h3runtime.jobs.table import Job, Status
from h3runtime.observe import memory
from h3runtime.settings import Settings


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
    diagnostics: dict[str, Any] | None
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


class LiveAnswer(BaseModel):
    """`alive`, or `dead` with the reason."""

    status: str
    reason: str
    version: str


class BackendAnswer(BaseModel):
    """Interchangeable backends: which one is used unless a request says otherwise, and why the others can't be."""

    default: str
    why: str
    available: list[str]
    grades: dict[str, str]
    unavailable: dict[str, str]


class ModelAnswer(BaseModel):
    """One loaded file."""

    component: str
    file: str
    sha256: str
    format: str
    bytes: int
    synthetic: bool
    partition: str | None
    adaln: str | None
    qkv: str | None
    load_seconds: float
    bytes_per_second: float


class LoadingAnswer(BaseModel):
    """Which component is being read, bytes behind of all files' bytes, and bytes a second of this component."""

    component: str
    bytes_done: int
    bytes_in_all: int
    bytes_per_second: float


class ReadyAnswer(BaseModel):
    """State of the server. What only a loaded engine knows is null or empty before."""

    status: str
    stage: str
    fraction: float
    loading: LoadingAnswer | None
    reason: str
    models: list[ModelAnswer]
    checkpoint: str | None
    device: str | None
    memory: dict[str, int]
    attention: BackendAnswer | None
    linear: BackendAnswer | None
    codecs: dict[str, list[str]]
    limits: dict[str, int]
    startup: dict[str, Any]
    warnings: list[str]
    queue_depth: int
    restarts: int
    version: str


CODECS = {
    "container": ["mp4"],
    "video_codec": ["h264"],
    "pixel_format": ["yuv420p"],
    "audio_codec": ["aac"],
}


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


def live_answer(state: EngineState) -> LiveAnswer:
    dead = state.status is EngineStatus.DEAD
    return LiveAnswer(status="dead" if dead else "alive", reason=state.reason if dead else "", version=__version__)


def ready_answer(state: EngineState, disk_full: bool, queue_depth: int, settings: Settings) -> ReadyAnswer:
    """disk_full counts only where the engine itself is ready: any other state says more."""
    facts = state.facts
    is_full = disk_full and state.status is EngineStatus.READY
    full = f"less than {settings.disk_floor_bytes} bytes are free on the disk"
    return ReadyAnswer(
        status="disk_full" if is_full else state.status.value,
        stage=state.stage,
        fraction=state.fraction,
        loading=_loading(state.loading) if state.loading else None,
        reason=full if is_full else state.reason,
        models=[_model(component) for component in facts.components] if facts else [],
        checkpoint=facts.checkpoint if facts else None,
        device=facts.device if facts else None,
        memory=(dict(facts.memory) if facts else {}) | {"host_available_bytes": memory.available_bytes()},
        attention=_backend(facts.attention) if facts else None,
        linear=_backend(facts.linear) if facts else None,
        codecs=CODECS,
        limits=_limits(settings),
        startup=_startup(state, facts) if facts else {},
        warnings=[*(facts.warnings if facts else ()), *state.warnings],
        queue_depth=queue_depth,
        restarts=state.restarts,
        version=__version__,
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


def _backend(choice: BackendChoice) -> BackendAnswer:
    return BackendAnswer(
        default=choice.default,
        why=choice.why,
        available=list(choice.available),
        grades=dict(choice.grades),
        unavailable=dict(choice.unavailable),
    )


def _model(component: ComponentFacts) -> ModelAnswer:
    return ModelAnswer(
        component=component.component,
        file=component.file,
        sha256=component.sha256,
        format=component.format,
        bytes=component.bytes,
        synthetic=component.synthetic,
        partition=component.partition,
        adaln=component.adaln,
        qkv=component.qkv,
        load_seconds=component.load_seconds,
        bytes_per_second=component.bytes_per_second,
    )


def _loading(progress: LoadProgress) -> LoadingAnswer:
    return LoadingAnswer(
        component=progress.component,
        bytes_done=progress.bytes_done,
        bytes_in_all=progress.bytes_in_all,
        bytes_per_second=progress.bytes_per_second,
    )


def _startup(state: EngineState, facts: EngineFacts) -> dict[str, Any]:
    loads = {component.component: component.load_seconds for component in facts.components}
    rates = {component.component: component.bytes_per_second for component in facts.components}
    told = {"load_seconds": loads, "load_bytes_per_second": rates}
    return told | {**facts.startup, "cold_start_seconds": state.cold_start_seconds}


def _limits(settings: Settings) -> dict[str, int]:
    return {
        "max_area": settings.max_area,
        "min_side": MIN_SIDE,
        "side_multiple": SIDE_MULTIPLE,
        "max_frames": settings.max_frames,
        "min_frames": MIN_FRAMES,
        "max_json_bytes": settings.max_json_bytes,
        "max_upload_bytes": settings.max_upload_bytes,
        "queue_limit": settings.queue_limit,
    }


def _plain(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def output_seconds(job: Job) -> float:
    """Seconds of video that a job has made; 0 if it made none."""
    clip: Clip | None = job.clip
    return clip.frames / FPS if clip else 0.0
