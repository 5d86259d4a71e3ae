"""Everything that goes wrong, as `application/problem+json` (RFC 9457): our errors, the framework's, and our bugs.

Bodies carry `type, title, status, detail` and our `code, errors, request_id`. Below `/v1` they have the shape that
OpenAI's clients read instead: `{"error": {"message", "type", "param", "code"}}`. They are ASCII whatever a client sent,
so that an odd character in a field's name can't break the answer that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from h3runtime.api.methods import allowed_methods
from h3runtime.errors import (
    BodyTooLarge,
    DiskFull,
    Draining,
    H3Error,
    InternalError,
    InvalidRequest,
    MalformedRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Offence,
    QueueFull,
    RateLimited,
    Unauthorized,
    UnsupportedMediaType,
    invalid,
)

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS: Mapping[type[H3Error], int] = {QueueFull: 30, DiskFull: 60, Draining: 30, NotReady: 10, RateLimited: 2}
"""What `Retry-After` advises; the first class that fits. About how long each state lasts when all is well."""
BY_STATUS: Mapping[int, type[H3Error]] = {
    400: MalformedRequest,
    401: Unauthorized,
    404: NotFound,
    405: MethodNotAllowed,
    413: BodyTooLarge,
    415: UnsupportedMediaType,
    422: InvalidRequest,
    429: RateLimited,
}
OPENAI_TYPES: Mapping[int, str] = {401: "authentication_error", 429: "rate_limit_error"}
"""`error.type` by status; other statuses from 400 are `invalid_request_error`, from 500 `server_error`."""


def install(app: FastAPI) -> None:
    """Answer every error of `app` as a problem. Exceptions that nobody expected are `requests`' part."""
    app.add_exception_handler(H3Error, _on_ours)
    app.add_exception_handler(HTTPException, _on_framework)
    app.add_exception_handler(RequestValidationError, _on_parameters)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


def problem(
    error: H3Error,
    request_id: str,
    status: int | None = None,
    extra: Mapping[str, str] | None = None,
    path: str = "",
) -> Response:
    """The answer to an error. A class that is no client's fault and has no status of its own is a 500.

    path: what was asked for; it decides on the shape.
    """
    status = status or error.status
    headers = dict(extra or {})
    if retry := next((seconds for kind, seconds in RETRY_SECONDS.items() if isinstance(error, kind)), None):
        headers["Retry-After"] = str(retry)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if is_openai(path):
        return Response(json.dumps(_openai_body(error, status)), status, headers, "application/json")
    return Response(json.dumps(_problem_body(error, status, request_id)), status, headers, MEDIA_TYPE)


def is_openai(path: str) -> bool:
    """Whether what lies there speaks OpenAI's words."""
    return path == "/v1" or path.startswith("/v1/")


def _problem_body(error: H3Error, status: int, request_id: str) -> dict[str, Any]:
    return {
        "type": f"urn:h3runtime:problem:{error.code}",
        "title": error.title,
        "status": status,
        "detail": error.message,
        "code": error.code,
        "errors": [{"field": o.field, "message": o.message, "legal": o.legal} for o in error.offences],
        "request_id": request_id,
    }


def _openai_body(error: H3Error, status: int) -> dict[str, Any]:
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = error.offences[0].field if error.offences else None
    return {"error": {"message": error.message, "type": kind, "param": param, "code": error.code}}


def request_id_of(request: Request) -> str:
    return str(getattr(request.state, "request_id", ""))


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, H3Error)
    return _answer(request, error)


async def _on_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = BY_STATUS.get(error.status_code, MalformedRequest if error.status_code < 500 else InternalError)
    told = {404: f"there is no {request.url.path[:200]}", 405: f"{request.method} is not possible here"}
    detail = told.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = allowed_methods(request.app.routes, request.scope["path"])
    return _answer(request, kind(detail), error.status_code, headers)


async def _on_parameters(request: Request, error: Exception) -> Response:
    """A query parameter: the only thing that the framework is left to judge."""
    assert isinstance(error, RequestValidationError)
    found: list[dict[str, Any]] = list(error.errors())
    return _answer(request, invalid([Offence(str(item["loc"][-1]), item["msg"]) for item in found]))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody reads this answer; what counts is that a client who leaves during an upload is no error of ours."""
    assert isinstance(error, ClientDisconnect)
    return _answer(request, MalformedRequest("the client left before the body was complete"))


def _answer(
    request: Request, error: H3Error, status: int | None = None, extra: Mapping[str, str] | None = None
) -> Response:
    return problem(error, request_id_of(request), status, extra, request.scope["path"])
