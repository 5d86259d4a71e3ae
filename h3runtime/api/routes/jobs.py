"""`/jobs` and what lies below one job. Another owner's job is as good as none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Path, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from h3runtime.api.answers import job_answer, page_answer
from h3runtime.api.auth import owner_of
from h3runtime.api.routes.answered import Json
from h3runtime.api.routes.content import clip_response, preview_response
from h3runtime.api.routes.described import (
    CANCEL_JOB,
    DELETE_JOB,
    GET_CONTENT,
    GET_EVENTS,
    GET_JOB,
    GET_PREVIEW,
    LIST_JOBS,
)
from h3runtime.api.routes.get import get_route
from h3runtime.api.service import Service
from h3runtime.jobs.events import Event
from h3runtime.jobs.table import Job

MAX_PAGE = 100
RETRY_MILLISECONDS = 2000
"""When a stream that the drain has ended should be tried again: about what a restart of the process takes at least."""
MAX_EVENT_DIGITS = 18

JobId = Annotated[str, Path(description="Id of a job.")]


def add_jobs(app: FastAPI, service: Service) -> None:
    def found(job_id: JobId, request: Request) -> Job:
        return service.job(job_id, owner_of(request))

    @get_route(app, "/jobs", **LIST_JOBS)
    async def list_jobs(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Jobs at most.")] = 20,
        after: Annotated[str | None, Query(description="Id of the last one already seen.")] = None,
    ) -> Response:
        """Jobs, newest first; `after` is the id of the last one already seen."""
        return Json(page_answer(*await service.page(limit, after, owner_of(request))))

    @get_route(app, "/jobs/{job_id}", **GET_JOB)
    async def get_job(job_id: JobId, request: Request) -> Response:
        """A job as it is now."""
        return Json(job_answer(found(job_id, request)))

    @app.delete("/jobs/{job_id}", **DELETE_JOB)
    async def delete_job(job_id: JobId, request: Request) -> Response:
        """Remove a job and all that belongs to it; one that hasn't ended is cancelled first."""
        return Json(job_answer(await service.delete(job_id, owner_of(request))))

    @app.post("/jobs/{job_id}/cancel", **CANCEL_JOB)
    async def cancel_job(job_id: JobId, request: Request) -> Response:
        """Stop a job at its next step, or take it out of the line. Of no effect after its end."""
        return Json(job_answer(await service.cancel(job_id, owner_of(request))))

    # Judged before the stream begins, which can't say any more that there is no such job.
    there = [Depends(found)]

    async def followed(
        job_id: JobId,
        request: Request,
        last_event_id: Annotated[str | None, Header(description="Go on after this event.")] = None,
    ) -> AsyncGenerator[AsyncIterator[Event]]:
        """Closed when the request ends. The stream itself, left by its client where it has just told something, would
        be closed when a collection of garbage comes by."""
        async with aclosing(service.events(job_id, owner_of(request), _number(last_event_id))) as events:
            yield events

    following = Depends(followed)

    @app.get("/jobs/{job_id}/events", response_class=EventSourceResponse, dependencies=there, **GET_EVENTS)
    async def get_events(events: AsyncIterator[Event] = following) -> AsyncIterator[ServerSentEvent]:
        """What happens to a job, as it happens: first how it is now, or with `Last-Event-ID` what came after that."""
        async for event in events:
            yield ServerSentEvent(data=event.data, event=event.kind, id=str(event.id))
        if service.is_draining:
            yield ServerSentEvent(comment="the server is shutting down", retry=RETRY_MILLISECONDS)

    @get_route(app, "/jobs/{job_id}/content", **GET_CONTENT)
    async def get_content(
        job_id: JobId,
        request: Request,
        variant: Annotated[int, Query(ge=0, description="Which clip, from 0.")] = 0,
    ) -> Response:
        """The clip. Ranges and `If-None-Match` are answered; the ETag is its SHA-256."""
        return await clip_response(service, found(job_id, request), variant, request)

    @get_route(app, "/jobs/{job_id}/preview", **GET_PREVIEW)
    async def get_preview(job_id: JobId, request: Request) -> Response:
        """The latest look at a clip, a PNG: cheap ones while it is sampled, its middle frame once it is decoded."""
        return await preview_response(service, found(job_id, request))


def _number(event: str | None) -> int | None:
    """An id that we have given, else None."""
    text = (event or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_EVENT_DIGITS else None
