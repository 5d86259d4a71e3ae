"""The bytes of a job: its clips, with ranges and conditions, and the newest preview.

`jobs` and the OpenAI shape answer with these. The disk is asked in threads, so that a slow one holds up nobody else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from h3runtime.api.service import Service
from h3runtime.errors import NotFinished, NotFound, OutputExpired
from h3runtime.jobs.outputs import clips_of
from h3runtime.jobs.table import Job, Status
from h3runtime.media.formats import media_type_of


async def clip_response(service: Service, job: Job, variant: int, request: Request) -> Response:
    """Clip `variant` of a job, whole or the ranges asked for; 304 for a client that has it. The ETag is its SHA-256.

    `NotFound` for a variant that the job doesn't make, `NotFinished`, `OutputExpired`.
    """
    if not 0 <= variant < job.spec.n:
        raise NotFound(f"job {job.id} has no variant {variant}; it has {job.spec.n}, counted from 0")
    if job.status is Status.EXPIRED:
        raise _expired(job)
    if job.status is not Status.SUCCEEDED or job.clip is None:
        raise NotFinished(f"job {job.id} is {job.status} and has no clip")
    clip = clips_of(job.clip)[variant]
    facts = await run_sync(_facts_of, clip.output)
    if facts is None:
        await service.lost(job)
        raise _expired(job)
    etag = f'"{clip.sha256}"'
    headers = {"ETag": etag, "X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-cache"}
    if _is_known(etag, request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    return FileResponse(
        clip.output,
        headers=headers,
        media_type=media_type_of(job.spec.encode.container),
        filename=clip.output.name,
        stat_result=facts,
    )


async def preview_response(service: Service, job: Job) -> Response:
    """The newest look at the clip. `NotFound` while there is none."""
    picture = await run_sync(lambda: _bytes_of(service.queue.preview_of(job.id)))
    if picture is None:
        raise NotFound(f"job {job.id} has no preview")
    return Response(picture, media_type="image/png", headers={"Cache-Control": "no-store"})


def _expired(job: Job) -> OutputExpired:
    return OutputExpired(f"the clip of job {job.id} has been removed or replaced")


def _is_known(etag: str, known: str) -> bool:
    return known.strip() == "*" or etag in [item.strip().removeprefix("W/") for item in known.split(",")]


def _facts_of(path: Path) -> os.stat_result | None:
    """None unless it is a file of its own."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts if stat.S_ISREG(facts.st_mode) else None


def _bytes_of(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError:
        return None
