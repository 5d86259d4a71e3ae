"""`/jobs` and what lies below one job."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request
from starlette.responses import FileResponse, Response

from h3runtime.api.answers import JobAnswer, PageAnswer, job_answer
from h3runtime.api.routes.get import get_route
from h3runtime.api.service import Service
from h3runtime.errors import NotFinished, NotFound, OutputExpired
from h3runtime.jobs.table import Status

MAX_PAGE = 100


def add_jobs(app: FastAPI, service: Service) -> None:
    @get_route(app, "/jobs", tags=["jobs"], operation_id="list_jobs")
    async def list_jobs(
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20, after: Annotated[str | None, Query()] = None
    ) -> PageAnswer:
        """Jobs, newest first; `after` is the id of the last one already seen."""
        jobs, has_more = service.table.page(limit, after)
        return PageAnswer(data=[job_answer(job) for job in jobs], has_more=has_more)

    @get_route(app, "/jobs/{job_id}", tags=["jobs"], operation_id="get_job")
    async def get_job(job_id: str) -> JobAnswer:
        """A job as it is now."""
        return job_answer(service.table.get(job_id))

    @app.post("/jobs/{job_id}/cancel", tags=["jobs"], operation_id="cancel_job")
    async def cancel_job(job_id: str) -> JobAnswer:
        """Stop a job at its next step, or take it out of the line. Of no effect after its end."""
        service.table.get(job_id)
        service.supervisor.cancel(job_id)
        return job_answer(service.table.get(job_id))

    @get_route(app, "/jobs/{job_id}/content", tags=["jobs"], operation_id="get_content", response_class=FileResponse)
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
