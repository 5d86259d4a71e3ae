"""What the service answers about jobs: one, or a page of them.

`routes` and the OpenAI shape ask for plain dictionaries, since a list of a hundred jobs has to be cheap; the models say
the same for OpenAPI, and a test holds the two together. The words are service-contract "The answer (a job)". Fields for
what a request asked nothing of are there with the value that says so, since clients read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from h3runtime import __version__
from h3runtime.core import FPS, AdapterUse, Check, Clip, EncodeSettings, Progress, Refined, RefinePass, variant_path
from h3runtime.errors import H3Error
from h3runtime.jobs.job import Job, Status
from h3runtime.jobs.log_lines import job_timings
from h3runtime.jobs.outputs import clips_of

FORMAT_FIELDS = tuple(EncodeSettings.__slots__)


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


class FormatAnswer(BaseModel):
    """How the clip is written, every value resolved; null is the encoder's own choice."""

    container: str
    video_codec: str
    crf: int | None
    pixel_format: str
    audio_codec: str
    audio_bitrate: int | None
    sample_rate: int
    fps: float
    loudness: str


class LoraAnswer(BaseModel):
    """An adapter that was active. alpha, rank: of most of its layers; `scale` is strength * alpha / rank, what its
    products are multiplied with, null where layers differ. matched of total: its layers that the transformer has."""

    name: str
    strength: float
    alpha: float | None
    rank: int
    scale: float | None
    matched: int
    total: int


class RefineAnswer(BaseModel):
    """A clip's second pass. width, height: of the first one, in pixels. forwards: of the second, which the job's own
    count too; with the seconds, which are of `timings.sampling`, null until it has run."""

    scale: float
    steps: int
    denoise: float
    width: int
    height: int
    forwards: int | None
    upscaling_seconds: float | None
    sampling_seconds: float | None


class JobAnswer(BaseModel):
    """A job. Of several clips, `output`, `sha256`, `bytes` and `url` are those of the first; `fps` is that of the file,
    `frames` and `seconds` count 24 a second. `forwards`: evaluations of the model; `skipped_steps`: steps that were
    made of earlier ones instead, so far while it runs.
    `attempt`: how often an engine has begun it. `expires_at`: when its clips
    are removed. Times RFC 3339, UTC; timings seconds."""

    id: str
    status: Literal["queued", "running", "succeeded", "failed", "cancelled", "expired"]
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
    fps: float
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
    format: FormatAnswer
    priority: int
    attempt: int
    loras: list[LoraAnswer]
    refine: RefineAnswer | None
    evidence: dict[str, Any] | None
    progress: ProgressAnswer
    timings: dict[str, float]
    memory: dict[str, int]
    created_at: str
    started_at: str | None
    finished_at: str | None
    expires_at: str | None
    error: FailureAnswer | None


LORA_FIELDS = tuple(LoraAnswer.model_fields)
REFINED_FIELDS = tuple(Refined.__slots__)


class PageAnswer(BaseModel):
    """Jobs, newest first; `after` with the last id gets the next page."""

    data: list[JobAnswer]
    has_more: bool


def job_answer(job: Job) -> dict[str, Any]:
    """The job as its client sees it now: a `JobAnswer` as a dictionary of what JSON can hold."""
    spec, clip = job.spec, job.clip
    outputs = _outputs(job)
    first = outputs[0]
    return {
        "id": job.id,
        "status": job.status.value,
        "task": spec.task.value,
        "output": first["output"],
        "url": first["url"],
        "sha256": first["sha256"],
        "bytes": first["bytes"],
        "outputs": outputs,
        "width": spec.width,
        "height": spec.height,
        "frames": spec.frames,
        "seconds": spec.frames / FPS,
        "fps": _rate(spec.encode.fps),
        "seed": first["seed"],
        "steps": spec.sampling.steps,
        "forwards": clip.forwards if clip else None,
        "skipped_steps": clip.skipped_steps if clip else len(job.progress.skipped),
        "sampler": spec.sampling.sampler,
        "scheduler": spec.sampling.scheduler,
        "shift": spec.sampling.shift,
        "audio_shift": spec.sampling.audio_shift,
        "attention": clip.attention if clip else spec.attention,
        "linear": clip.linear if clip else spec.linear,
        "quality": spec.request.get("quality"),
        "checkpoint": job.checkpoint,
        "version": __version__,
        "prompt": spec.prompt,
        "warnings": [*job.warnings, *_warnings(clip)],
        "checks": {name: check_answer(check) for name, check in clip.checks.items()} if clip else {},
        "first_after_start": job.first_after_start,
        "diagnostics": dict(clip.diagnostics) if clip and clip.diagnostics is not None else None,
        "format": _format(spec.encode),
        "priority": job.order.priority,
        "attempt": job.attempt,
        "loras": [lora_answer(use) for use in spec.loras],
        "refine": refine_answer(spec.refine, clip),
        "evidence": None if spec.evidence is None else dict(spec.evidence),
        "progress": progress_answer(job.progress),
        "timings": job_timings(job),
        "memory": dict(clip.memory) if clip else {},
        "created_at": _time(job.created_at),
        "started_at": _time(job.started_at),
        "finished_at": _time(job.finished_at),
        "expires_at": _time(job.expires_at),
        "error": _failure(job.error) if job.error else None,
    }


def lora_answer(use: AdapterUse) -> dict[str, Any]:
    """A `LoraAnswer`."""
    return {name: getattr(use, name) for name in LORA_FIELDS}


def refine_answer(refine: RefinePass | None, clip: Clip | None) -> dict[str, Any] | None:
    """A `RefineAnswer`; None for a clip of one pass."""
    if refine is None:
        return None
    took = clip.refined if clip else None
    asked = {name: getattr(refine, name) for name in ("scale", "steps", "denoise", "width", "height")}
    return asked | {name: None if took is None else getattr(took, name) for name in REFINED_FIELDS}


def page_answer(jobs: Sequence[Job], has_more: bool) -> dict[str, Any]:
    return {"data": [job_answer(job) for job in jobs], "has_more": has_more}


def content_url(job: Job, index: int) -> str | None:
    """Where clip `index` can be fetched, if it can."""
    if job.status is not Status.SUCCEEDED:
        return None
    return f"/jobs/{job.id}/content" + (f"?variant={index}" if index else "")


def progress_answer(progress: Progress) -> dict[str, Any]:
    return {
        "stage": progress.stage,
        "step": progress.step,
        "steps": progress.steps,
        "fraction": progress.fraction,
        "eta_seconds": progress.eta_seconds,
    }


def _outputs(job: Job) -> list[dict[str, Any]]:
    spec, clips = job.spec, clips_of(job.clip) if job.clip else ()
    return [
        {
            "index": index,
            "seed": str(spec.sampling.seed + index),
            "output": variant_path(spec.output, index, spec.n).name,
            "sha256": clips[index].sha256 if clips else None,
            "bytes": clips[index].bytes if clips else None,
            "url": content_url(job, index),
        }
        for index in range(spec.n)
    ]


def _warnings(clip: Clip | None) -> Iterator[str]:
    """Of all clips; which one it is about is told from the second on."""
    if clip is None:
        return
    yield from clip.warnings
    for index, variant in enumerate(clip.variants, 1):
        yield from (f"clip {index}: {text}" for text in variant.warnings if text not in clip.warnings)


def _format(encode: EncodeSettings) -> dict[str, Any]:
    return {name: getattr(encode, name) for name in FORMAT_FIELDS} | {"fps": _rate(encode.fps)}


def _rate(fps: float) -> float:
    """24, not 24.0: a whole rate is a whole number, before a restart and after it."""
    return int(fps) if fps == int(fps) else fps


def _failure(error: H3Error) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.message,
        "stage": getattr(error, "stage", None),
        "step": getattr(error, "step", None),
    }


def check_answer(check: Check) -> dict[str, Any]:
    """Figures and findings of one check, flat."""
    return {**check.figures, "findings": [{"level": level, "message": text} for level, text in check.findings]}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def output_seconds(job: Job) -> float:
    """Seconds of video that a job has made; 0 if it made none."""
    return sum(clip.frames / FPS for clip in clips_of(job.clip)) if job.clip else 0.0
