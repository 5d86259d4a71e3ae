"""The routes. A factory: every call makes an app of its own, and importing this module does nothing.

Handlers read a request, ask the `Service`, and word the answer; none of them computes, and none touches a device, so
that health answers while a job runs. What wraps the routes, from outside: `requests` (ids, logs, counts), `limits`
(body sizes), the framework with the handlers of `problems`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from starlette.responses import FileResponse, JSONResponse, Response

from h3runtime import __version__
from h3runtime.api import problems
from h3runtime.api.answers import JobAnswer, PageAnswer, job_answer
from h3runtime.api.health import LiveAnswer, ReadyAnswer, live_answer, ready_answer
from h3runtime.api.limits import BodyLimit
from h3runtime.api.openapi import REQUEST_BODY, describe
from h3runtime.api.requests import Requests
from h3runtime.api.service import Service
from h3runtime.errors import NotFinished, NotFound, OutputExpired, UnsupportedMediaType
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.jobs.table import Job, Status
from h3runtime.observe.metrics import CONTENT_TYPE

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
MAX_PAGE = 100


def create_app(service: Service) -> FastAPI:
    """The app of one service, which the caller starts and closes."""
    app = FastAPI(title="h3runtime", version=__version__, redoc_url=None, summary="MiniMax H3 as a resident service.")
    problems.install(app)
    _add_jobs(app, service)
    _add_health(app, service)
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimit, json_bytes=service.settings.max_json_bytes, upload_bytes=service.settings.max_upload_bytes
    )
    app.add_middleware(Requests, metrics=service.metrics)
    describe(app)
    return app


def _add_jobs(app: FastAPI, service: Service) -> None:
    def answered(job: Job, status: int = 200) -> JSONResponse:
        body = job_answer(job).model_dump(mode="json")
        return JSONResponse(body, status, {"Location": f"/jobs/{job.id}"})

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

    @_get(app, "/jobs", tags=["jobs"], operation_id="list_jobs")
    async def list_jobs(
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20, after: Annotated[str | None, Query()] = None
    ) -> PageAnswer:
        """Jobs, newest first; `after` is the id of the last one already seen."""
        jobs, has_more = service.table.page(limit, after)
        return PageAnswer(data=[job_answer(job) for job in jobs], has_more=has_more)

    @_get(app, "/jobs/{job_id}", tags=["jobs"], operation_id="get_job")
    async def get_job(job_id: str) -> JobAnswer:
        """A job as it is now."""
        return job_answer(service.table.get(job_id))

    @app.post("/jobs/{job_id}/cancel", tags=["jobs"], operation_id="cancel_job")
    async def cancel_job(job_id: str) -> JobAnswer:
        """Stop a job at its next step, or take it out of the line. Of no effect after its end."""
        service.table.get(job_id)
        service.supervisor.cancel(job_id)
        return job_answer(service.table.get(job_id))

    @_get(app, "/jobs/{job_id}/content", tags=["jobs"], operation_id="get_content", response_class=FileResponse)
    async def get_content(job_id: str, request: Request, variant: Annotated[int, Query(ge=0)] = 0) -> Response:
        """The clip. Ranges and `If-None-Match` are answered; the ETag is its SHA-256. A job has the one variant 0."""
        if variant != 0:
            raise NotFound(f"job {service.table.get(job_id).id} has no variant {variant}")
        return _content(service, job_id, request.headers.get("if-none-match", ""))


def _content(service: Service, job_id: str, known: str) -> Response:
    job = service.table.get(job_id)
    path = job.spec.output
    if job.status is Status.SUCCEEDED and not path.is_file():
        job = service.table.change(job_id, status=Status.EXPIRED)
    if job.status is Status.EXPIRED:
        raise OutputExpired(f"the clip of job {job_id} has been removed or replaced")
    if job.clip is None:
        raise NotFinished(f"job {job_id} is {job.status} and has no clip")
    etag = f'"{job.clip.sha256}"'
    headers = {"ETag": etag, "X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-cache"}
    if etag in [item.strip().removeprefix("W/") for item in known.split(",")] or known.strip() == "*":
        return Response(status_code=304, headers=headers)
    return FileResponse(path, headers=headers, media_type="video/mp4", filename=path.name)


def _add_health(app: FastAPI, service: Service) -> None:
    async def live(response: Response) -> LiveAnswer:
        """200 while the server answers and the engine isn't dead for good."""
        answer = live_answer(service.state)
        response.status_code = 503 if answer.status == "dead" else 200
        return answer

    async def ready(response: Response) -> ReadyAnswer:
        """200 when jobs are taken, else 503; the body says what stands in the way."""
        full = service.folders.is_full()
        answer = ready_answer(service.state, full, service.queue.waiting, service.settings)
        response.status_code = 200 if answer.status == EngineStatus.READY else 503
        return answer

    refusal: dict[int | str, dict[str, Any]] = {503: {"description": "The same body, with the reason."}}
    _get(app, "/live", tags=["health"], operation_id="live", responses=refusal)(live)
    _get(app, "/ready", tags=["health"], operation_id="ready", responses=refusal)(ready)
    _get(app, "/v2/health/live", tags=["health"], operation_id="v2_live", responses=refusal)(live)
    _get(app, "/v2/health/ready", tags=["health"], operation_id="v2_ready", responses=refusal)(ready)

    @_get(app, "/metrics", tags=["health"], operation_id="metrics")
    async def metrics() -> Response:
        """Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def _get(app: FastAPI, path: str, **described: Any) -> Callable[[Endpoint], Endpoint]:
    """A route for GET, and for HEAD, which probes and proxies use: the same without the body, and not described."""

    def add(endpoint: Endpoint) -> Endpoint:
        app.head(path, include_in_schema=False)(endpoint)
        return app.get(path, **described)(endpoint)

    return add


def _preferred_wait(prefer: str) -> float | None:
    """`Prefer` (RFC 7240): 0 for respond-async, N for wait=N, None for as long as it takes."""
    words = [word.strip().lower() for word in re.split(r"[,;]", prefer)]
    waits = [int(found[1]) for word in words if (found := re.fullmatch(r'wait\s*=\s*"?([0-9]{1,6})"?', word))]
    if waits:
        return float(waits[0])
    return 0.0 if "respond-async" in words else None
