"""What the log says of a job at its start and at its end: no path, no key, and the prompt only if it was asked for."""

from __future__ import annotations

from typing import Any

from h3runtime.jobs.job import Job, Status


def log_start(job: Job) -> None:
    from h3runtime.observe.logs import log_prompt

    _log().info("generate_start", **_told(job))
    log_prompt(job.id, job.spec.prompt)


def log_end(job: Job) -> None:
    clip, error = job.clip, job.error
    if job.status is Status.SUCCEEDED and clip is not None:
        _log().info("generate_complete", **_told(job), sha256=clip.sha256, bytes=clip.bytes, **_peaks(job))
        return
    stage, step = getattr(error, "stage", None), getattr(error, "step", None)
    code, message = (error.code, error.message) if error else ("cancelled", "cancelled")
    _log().info("generate_failed", **_told(job), code=code, message=message, stage=stage, step=step, **_peaks(job))


def _log() -> Any:
    # Not at the top: a command reads `job_timings` alone, and this import takes 0.1 s.
    import structlog

    return structlog.get_logger("h3runtime.jobs")


def _peaks(job: Job) -> dict[str, Any]:
    return {"memory": dict(job.clip.memory) if job.clip else {}}


def job_timings(job: Job) -> dict[str, float]:
    """Seconds by stage, with `queue` and `total` as the server saw them; what hasn't ended is absent."""
    outer = {"queue": job.queue_seconds, "total": job.total_seconds}
    stages = dict(job.clip.timings) if job.clip else {}
    ends = {name: seconds for name, seconds in outer.items() if seconds is not None}
    return {"queue": ends.pop("queue"), **stages, **ends} if "queue" in ends else stages | ends


def _told(job: Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "job_id": job.id,
        "request_id": job.order.request_id,
        "task": str(spec.task),
        "output": spec.output.name,
        "n": spec.n,
        "seed": str(spec.sampling.seed),
        "attention": spec.attention,
        "linear": spec.linear,
        "width": spec.width,
        "height": spec.height,
        "frames": spec.frames,
        "steps": spec.sampling.steps,
        "attempt": job.attempt,
        "timings": job_timings(job),
    }
