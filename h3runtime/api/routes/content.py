"""The bytes of a job: its clips, with ranges and conditions, and the newest preview.

`jobs` and the OpenAI shape answer with these. The disk is asked in threads, so that a slow one holds up nobody else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from h3runtime.api.etags import is_known
from h3runtime.api.routes.ranges import wanted
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
    file = await run_sync(_opened, clip.output)
    if file is None:
        await service.lost(job)
        raise _expired(job)
    etag = f'"{clip.sha256}"'
    headers = {"ETag": etag, "X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-cache"}
    with ExitStack() as held:
        held.enter_context(file)
        # Another clip has just taken its name, and its job is about to be told so.
        if os.fstat(file.fileno()).st_size != clip.bytes:
            raise _expired(job)
        if is_known(etag, request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        held.pop_all()
    return _OpenClip(file, clip.output.name, media_type_of(job.spec.encode.container), headers)


async def preview_response(service: Service, job: Job) -> Response:
    """The newest look at the clip. `NotFound` while there is none."""
    picture = await run_sync(lambda: _bytes_of(service.queue.preview_of(job.id)))
    if picture is None:
        raise NotFound(f"job {job.id} has no preview")
    return Response(picture, media_type="image/png", headers={"Cache-Control": "no-store"})


class _OpenClip(FileResponse):
    """A file that is open already: what is removed or replaced after the status was sent is sent to its end."""

    def __init__(self, file: BinaryIO, name: str, media_type: str, headers: Mapping[str, str]) -> None:
        facts = os.fstat(file.fileno())
        path = f"/proc/self/fd/{file.fileno()}"
        super().__init__(path, headers=headers, media_type=media_type, filename=name, stat_result=facts)
        self._file, self._size = file, facts.st_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = wanted(scope["method"], Headers(scope=scope).get("range"), self._size)
        others = [(name, value) for name, value in scope["headers"] if name != b"range"]
        ranges = [] if asked is None else [(b"range", asked.encode("latin-1"))]
        with self._file:
            await super().__call__({**scope, "headers": others + ranges}, receive, send)


def _expired(job: Job) -> OutputExpired:
    return OutputExpired(f"the clip of job {job.id} has been removed or replaced")


def _opened(path: Path) -> BinaryIO | None:
    """None unless it is a file of its own."""
    try:
        # A pipe of this name would be waited for.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    return None


def _bytes_of(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError:
        return None
