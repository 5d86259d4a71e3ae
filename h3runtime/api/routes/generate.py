"""`POST /generate`: a request in, a job out, at once or when it has ended."""

from __future__ import annotations

import re

from fastapi import FastAPI, Request
from starlette.responses import Response

from h3runtime.api.answers import JobAnswer
from h3runtime.api.openapi import REQUEST_BODY
from h3runtime.api.routes.answered import answered
from h3runtime.api.service import Service
from h3runtime.errors import UnsupportedMediaType


def add_generate(app: FastAPI, service: Service) -> None:
    @app.post(
        "/generate",
        tags=["jobs"],
        operation_id="generate",
        response_model=JobAnswer,
        responses={202: {"model": JobAnswer, "description": "Not ended yet."}},
        openapi_extra={"requestBody": REQUEST_BODY},
    )
    async def generate(request: Request) -> Response:
        """Make a clip. Answers when the job has ended, whatever its end; `Prefer: respond-async` or `wait=N` before."""
        if (coding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            raise UnsupportedMediaType(f"content encoding {coding[:40]!r} is not undone; send the body as it is")
        job = await service.submit(request.headers.get("content-type", ""), request.stream())
        wait = _preferred_wait(request.headers.get("prefer", ""))
        if wait != 0:
            job = await service.wait(job.id, wait)
        return answered(job, 200 if job.status.ended else 202)


def _preferred_wait(prefer: str) -> float | None:
    """`Prefer` (RFC 7240): 0 for respond-async, N for wait=N, None for as long as it takes."""
    words = [word.strip().lower() for word in re.split(r"[,;]", prefer)]
    waits = [int(found[1]) for word in words if (found := re.fullmatch(r'wait\s*=\s*"?([0-9]{1,6})"?', word))]
    if waits:
        return float(waits[0])
    return 0.0 if "respond-async" in words else None
