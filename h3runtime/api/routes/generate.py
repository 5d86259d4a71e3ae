"""`POST /generate`: a request in, a job out, at once or when it has ended. `/estimate`: what one would take."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from h3runtime.api.auth import owner_of
from h3runtime.api.caller import Caller
from h3runtime.api.problems import request_id_of
from h3runtime.api.routes.answered import Json, answered
from h3runtime.api.routes.connected import while_connected
from h3runtime.api.routes.described import ESTIMATE, ESTIMATE_BY_GET, GENERATE
from h3runtime.api.routes.prefer import preference_of
from h3runtime.api.service import Service
from h3runtime.errors import UnsupportedMediaType


def add_generate(app: FastAPI, service: Service) -> None:
    @app.post("/generate", **GENERATE)
    async def generate(request: Request) -> Response:
        """Make a clip. Answers when the job has ended, whatever its end; `Prefer: respond-async` or `wait=N` before."""
        caller, preference = Caller.of(request), preference_of(request.headers.getlist("prefer"))
        submitted = await service.submit(content_type_of(request), request.stream(), caller)
        job = submitted.job
        if preference.seconds != 0 and not job.status.ended:
            job = await while_connected(request, service.wait(job.id, caller.owner, preference.seconds))
        headers = {"Preference-Applied": preference.applied} if preference.applied else {}
        if submitted.replayed:
            headers["Idempotent-Replay"] = "true"
        return answered(job, 200 if job.status.ended else 202, headers)

    async def estimate(request: Request) -> Response:
        """What a request would take, and whether it would be taken now. Computes nothing and queues nothing."""
        # Nothing is made, so a key of the request means nothing.
        caller = Caller(owner_of(request), request_id=request_id_of(request))
        return Json(await service.estimate(content_type_of(request), request.stream(), caller))

    app.post("/estimate", **ESTIMATE)(estimate)
    app.get("/estimate", **ESTIMATE_BY_GET)(estimate)


def content_type_of(request: Request) -> str:
    """`UnsupportedMediaType` for a body that was packed."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise UnsupportedMediaType(f"content encoding {ascii(coding)[1:40]} is not undone; send the body as it is")
    return request.headers.get("content-type", "")
