"""What OpenAPI tells of each route beside its parameters: answers by status, their headers, and where they lead.

`routes` hand these to the framework as they are. A status that a route answers is listed there, and what any route may
answer (a missing key, our own bug) is `openapi`'s part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from h3runtime.api.answers import JobAnswer, PageAnswer
from h3runtime.api.estimates import EstimateAnswer
from h3runtime.api.health import LiveAnswer, ReadyAnswer
from h3runtime.api.openapi import ESTIMATE_BODY, PROBLEM_CONTENT, REQUEST_BODY
from h3runtime.media.formats import CONTAINERS
from h3runtime.observe.metrics import CONTENT_TYPE

Described = dict[str, Any]

WHY: Mapping[int, str] = {
    304: "The client's copy is the newest.",
    400: "The request can't be read.",
    404: "There is no such job, or nothing of that kind of it.",
    409: "The job has no clip yet or will have none, or the output's name is taken.",
    410: "The clip has been removed or replaced.",
    413: "The body is too large.",
    415: "The body is neither JSON nor a form.",
    416: "The range lies beyond the clip.",
    422: "Something in the request is wrong; all of it is told.",
    429: "Too many requests of this client are being read.",
    503: "Not now; `Retry-After` says when to come back.",
}
WHERE = {"Location": {"description": "Where the job is.", "schema": {"type": "string"}}}
WHEN = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}
APPLIED = {
    "Preference-Applied": {"description": "What of `Prefer` was heeded.", "schema": {"type": "string"}},
    "Idempotent-Replay": {
        "description": "`true` if an earlier request with the same key made the job.",
        "schema": {"type": "string", "enum": ["true"]},
    },
}
PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "Prefer",
        "in": "header",
        "description": "`respond-async` answers at once, `wait=N` after N seconds at most (RFC 7240).",
        "schema": {"type": "string"},
        "examples": {"at once": {"value": "respond-async"}, "soon": {"value": "wait=5"}},
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The same key and request give the same job, however often they are sent.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-\\[\\]-~]{1,255}$"},
    },
]
BELOW = ("get_job", "get_events", "get_content", "get_preview", "cancel_job", "delete_job")


def links() -> dict[str, Any]:
    """From a job to everything that can be done with it."""
    return {
        name: {"operationId": name, "parameters": {"job_id": "$response.body#/id"}, "description": "This job."}
        for name in BELOW
    }


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {"description": WHY[status], "content": PROBLEM_CONTENT} | ({"headers": WHEN} if status == 503 else {})
        for status in statuses
    }


def _job(tag: str, operation: str, description: str, *wrong: int, **more: Any) -> Described:
    answers = {200: {"model": JobAnswer, "description": description, **more}} | problems(*wrong)
    return {"tags": [tag], "operation_id": operation, "response_model": JobAnswer, "responses": answers}


_REFUSALS = (400, 413, 415, 422, 429, 503)
_PENDING = {"model": JobAnswer, "description": "Not ended yet.", "headers": WHERE | WHEN | APPLIED, "links": links()}

GENERATE = _job(
    "jobs", "generate", "The job has ended, well or not.", 409, *_REFUSALS, headers=WHERE | APPLIED, links=links()
)
GENERATE["responses"][202] = _PENDING
GENERATE["openapi_extra"] = {"requestBody": REQUEST_BODY, "parameters": PARAMETERS}
ESTIMATE: Described = {
    "tags": ["jobs"],
    "operation_id": "estimate",
    "response_model": EstimateAnswer,
    "responses": problems(*_REFUSALS),
    "openapi_extra": {"requestBody": ESTIMATE_BODY},
}
ESTIMATE_BY_GET = ESTIMATE | {"operation_id": "estimate_by_get"}
LIST_JOBS: Described = {
    "tags": ["jobs"],
    "operation_id": "list_jobs",
    "response_model": PageAnswer,
    "responses": problems(404, 422),
}
GET_JOB = _job("jobs", "get_job", "The job as it is now.", 404, links=links())
CANCEL_JOB = _job("jobs", "cancel_job", "The job; it ends at its next step, if it hasn't ended.", 404, 503)
DELETE_JOB = _job("jobs", "delete_job", "The job as it was last; it is gone now.", 404, 503)
GET_EVENTS: Described = {
    "tags": ["jobs"],
    "operation_id": "get_events",
    "responses": {200: {"description": "`state` and `progress` events; ends with the job."}} | problems(404),
}
_CLIP = {holds.media_type: {"schema": {"type": "string", "format": "binary"}} for holds in CONTAINERS.values()}
_CLIP_HEADERS = {
    name: {"description": told, "schema": {"type": "string"}}
    for name, told in {
        "ETag": "SHA-256 of the clip, in quotes.",
        "Accept-Ranges": "`bytes`.",
        "Content-Disposition": "The clip's name.",
    }.items()
}
_PARTS = {"multipart/byteranges": {"schema": {"type": "string", "format": "binary"}}}
GET_CONTENT: Described = {
    "tags": ["jobs"],
    "operation_id": "get_content",
    "responses": {
        200: {"description": "The whole clip.", "content": _CLIP, "headers": _CLIP_HEADERS},
        206: {"description": "The part that was asked for.", "content": _CLIP | _PARTS, "headers": _CLIP_HEADERS},
        304: {"description": WHY[304]},
        **problems(400, 404, 409, 410, 416, 422),
    },
    "openapi_extra": {
        "parameters": [
            {"name": name, "in": "header", "description": told, "schema": {"type": "string"}}
            for name, told in {
                "Range": "Bytes of the clip, `bytes=0-99`.",
                "If-Range": "The part only if the clip is still this one.",
                "If-None-Match": "304 if the clip is still this one.",
            }.items()
        ]
    },
}
GET_PREVIEW: Described = {
    "tags": ["jobs"],
    "operation_id": "get_preview",
    "responses": {
        200: {
            "description": "A cheap look at the clip as it is now; once it is decoded, its middle frame.",
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(404),
    },
}


def health(operation: str, model: type[LiveAnswer] | type[ReadyAnswer]) -> Described:
    answers = {
        200: {"model": model, "description": "Yes."},
        503: {"model": model, "description": "No; the same body says why."},
    }
    return {"tags": ["health"], "operation_id": operation, "response_model": model, "responses": answers}


METRICS: Described = {
    "tags": ["health"],
    "operation_id": "metrics",
    "responses": {
        200: {"description": "Prometheus' text format.", "content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}
    },
}
