"""/v1/videos: created at once, looked at, listed, fetched, deleted. Another owner's video is as good as none."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Path, Query, Request
from starlette.responses import Response

from h3runtime.api.auth import owner_of
from h3runtime.api.caller import Caller
from h3runtime.api.openai.creation import read_creation
from h3runtime.api.openai.described import CONTENT, CREATE, DELETE, GET, LIST
from h3runtime.api.openai.video import deleted, page_of, video_of
from h3runtime.api.routes.answered import Json
from h3runtime.api.routes.content import clip_response, preview_response
from h3runtime.api.routes.generate import content_type_of
from h3runtime.api.routes.get import get_route
from h3runtime.api.service import Service, Submitted
from h3runtime.errors import InvalidRequest, NotFound
from h3runtime.jobs.table import Job

MAX_PAGE = 100
VARIANTS = "video (the clip), thumbnail (a picture), or the number of a clip, from 0"
NOT_HERE = ("/v1/videos/edits", "/v1/videos/extensions", "/v1/videos/characters", "/v1/videos/{video_id}/remix")
"""What else OpenAI's API does. Answered here so that a neighbour's route doesn't say that the method is wrong."""

VideoId = Annotated[str, Path(description="Id of a video, or of any job.")]


def add_openai(app: FastAPI, service: Service) -> None:
    def found(video_id: str, request: Request) -> Job:
        return service.job(video_id, owner_of(request))

    async def not_here(request: Request) -> Response:
        raise NotFound(f"there is no {request.url.path[:200]}")

    for path in NOT_HERE:
        app.post(path, include_in_schema=False)(not_here)

    @app.post("/v1/videos", **CREATE)
    async def create_video(request: Request) -> Response:
        """Begin a video. Answers at once; ask for it again until it is `completed` or `failed`."""
        submitted = await _submitted(service, request)
        headers = {"Idempotent-Replay": "true"} if submitted.replayed else {}
        return Json(video_of(submitted.job), 200, headers)

    @get_route(app, "/v1/videos", **LIST)
    async def list_videos(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Videos at most.")] = 20,
        after: Annotated[str | None, Query(description="Id of the last one already seen.")] = None,
        order: Annotated[Literal["asc", "desc"], Query(description="By time; desc is newest first.")] = "desc",
    ) -> Response:
        """Videos in the order of their creation."""
        return Json(page_of(*await service.page(limit, after, owner_of(request), oldest_first=order == "asc")))

    @get_route(app, "/v1/videos/{video_id}", **GET)
    async def get_video(video_id: VideoId, request: Request) -> Response:
        """A video as it is now."""
        return Json(video_of(found(video_id, request)))

    @app.delete("/v1/videos/{video_id}", **DELETE)
    async def delete_video(video_id: VideoId, request: Request) -> Response:
        """Remove a video and all that belongs to it; one that hasn't ended is cancelled first."""
        job = await service.delete(video_id, owner_of(request))
        return Json(deleted(job.id))

    @get_route(app, "/v1/videos/{video_id}/content", **CONTENT)
    async def get_video_content(
        video_id: VideoId,
        request: Request,
        variant: Annotated[str, Query(max_length=20, description=VARIANTS)] = "video",
    ) -> Response:
        """The clip, with ranges and `If-None-Match`; `thumbnail` is the latest preview of one that computes."""
        job = found(video_id, request)
        if variant == "thumbnail":
            return await preview_response(service, job)
        if variant != "video" and not (variant.isascii() and variant.isdecimal()):
            raise NotFound(f"job {job.id} has no variant {variant!a}; there are {VARIANTS}")
        return await clip_response(service, job, 0 if variant == "video" else int(variant), request)


async def _submitted(service: Service, request: Request) -> Submitted:
    caller = Caller.of(request)
    service.check_takes(caller)
    with service.submissions.of(caller.owner):
        async with service.uploads() as folder:
            most = service.settings.max_json_bytes
            creation = await read_creation(content_type_of(request), request.stream(), folder, most)
            try:
                return await service.submit_delivery(creation.delivery, caller)
            except InvalidRequest as error:
                raise creation.told(error) from None
