"""Everything that goes wrong, as `application/problem+json` (RFC 9457): our errors, the framework's, and our bugs.

Bodies carry `type, title, status, detail` and our `code, errors, request_id`. They are ASCII whatever a client sent, so
that an odd character in a field's name can't break the answer that names it.
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
    UnsupportedMediaType,
    invalid,
)

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS: Mapping[type[H3Error], int] = {QueueFull: 30, DiskFull: 60, Draining: 30, NotReady: 10}
"""What `Retry-After` advises; the first class that fits. About how long each state lasts when all is well."""
BY_STATUS: Mapping[int, type[H3Error]] = {
    400: MalformedRequest,
    404: NotFound,
    405: MethodNotAllowed,
    413: BodyTooLarge,
    415: UnsupportedMediaType,
    422: InvalidRequest,
}


def install(app: FastAPI) -> None:
    """Answer every error of `app` as a problem. Exceptions that nobody expected are `requests`' part."""
    app.add_exception_handler(H3Error, _on_ours)
    app.add_exception_handler(HTTPException, _on_framework)
    app.add_exception_handler(RequestValidationError, _on_parameters)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


def problem(
    error: H3Error, request_id: str, status: int | None = None, extra: Mapping[str, str] | None = None
) -> Response:
    """The answer to an error. A class that is no client's fault and has no status of its own is a 500."""
    status = status or error.status
    body = {
        "type": f"urn:h3runtime:problem:{error.code}",
        "title": error.title,
        "status": status,
        "detail": error.message,
        "code": error.code,
        "errors": [{"field": o.field, "message": o.message, "legal": o.legal} for o in error.offences],
        "request_id": request_id,
    }
    headers = dict(extra or {})
    if retry := next((seconds for kind, seconds in RETRY_SECONDS.items() if isinstance(error, kind)), None):
        headers["Retry-After"] = str(retry)
    return Response(json.dumps(body), status, headers, MEDIA_TYPE)


def request_id_of(request: Request) -> str:
    return str(getattr(request.state, "request_id", ""))


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, H3Error)
    return problem(error, request_id_of(request))


async def _on_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = BY_STATUS.get(error.status_code, MalformedRequest if error.status_code < 500 else InternalError)
    told = {404: f"there is no {request.url.path[:200]}", 405: f"{request.method} is not possible here"}
    detail = told.get(error.status_code, str(error.detail))
    return problem(kind(detail), request_id_of(request), error.status_code, error.headers)


async def _on_parameters(request: Request, error: Exception) -> Response:
    """A query parameter: the only thing that the framework is left to judge."""
    assert isinstance(error, RequestValidationError)
    found: list[dict[str, Any]] = list(error.errors())
    return problem(invalid([Offence(str(item["loc"][-1]), item["msg"]) for item in found]), request_id_of(request))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody reads this answer; what counts is that a client who leaves during an upload is no error of ours."""
    assert isinstance(error, ClientDisconnect)
    return problem(MalformedRequest("the client left before the body was complete"), request_id_of(request))
