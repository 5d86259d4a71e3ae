"""Around every request: an id, a log line, a count, and a problem wherever something else than a problem would go out.

Pure ASGI, outside the framework's own error handling, so that nothing goes out without an id. A client's
`X-Request-ID` is taken over if it is a plain word, else we make one. A target in absolute form, which RFC 9112 wants
understood, is brought to the usual one here, before anybody judges a path.
"""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from http import HTTPStatus

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from h3runtime.api.problems import BY_STATUS, problem
from h3runtime.errors import InternalError, MalformedRequest
from h3runtime.observe.metrics import Metrics
from h3runtime.observe.private import privacy
from h3runtime.observe.spans import span

HEADER = "x-request-id"
TRACE = "traceparent"
QUIET = frozenset({"/live", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""Probes come every few seconds; their log lines would hide the rest."""
NO_ROUTE = "unmatched"

log = structlog.get_logger("h3runtime.http")


class Requests:
    """Wraps the app; see the module."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get(HEADER, ""))
        scope["path"] = _origin_form(scope["path"])
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = time.monotonic(), 0
        plain: Message | None = None

        async def tagged(message: Message) -> None:
            nonlocal status, plain
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
                plain = message if _is_plain_error(message) else None
            if plain is None:
                await send(message)
            elif not message.get("more_body", message is plain):
                answer = _as_problem(plain, request_id, scope["path"])
                plain = None
                await answer(scope, receive, tagged)

        named = {"method": scope["method"], "request_id": request_id}
        caller = Headers(scope=scope).get(TRACE, "")
        with (
            structlog.contextvars.bound_contextvars(request_id=request_id),
            privacy(),
            nullcontext() if scope["path"] in QUIET else span("http_request", traceparent=caller, **named),
        ):
            try:
                await self._app(scope, receive, tagged)
            except Exception as error:
                log.error("http_error", path=scope["path"], exc_info=error)
                if status == 0:
                    met = InternalError("the server met an internal error")
                    answer = problem(met, request_id, path=scope["path"])
                    await answer(scope, receive, tagged)
            finally:
                self._told(scope, status, time.monotonic() - began)

    def _told(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", NO_ROUTE)
        self._metrics.request_answered(scope["method"] if route != NO_ROUTE else "any", route, status, seconds)
        if scope["path"] not in QUIET:
            owner = scope["state"].get("owner", "")
            whose = {"owner": owner} if owner else {}
            spent = round(seconds * 1000, 1)
            log.info("http_request", method=scope["method"], route=route, status=status, duration_ms=spent, **whose)


def _is_plain_error(start: Message) -> bool:
    """The framework answers a few mistakes in plain text by itself, a bad `Range` for one."""
    return start["status"] >= 400 and Headers(scope=start).get("content-type", "text/plain").startswith("text/plain")


def _as_problem(start: Message, request_id: str, path: str) -> Response:
    kept = {name: value for name, value in Headers(scope=start).items() if name in ("content-range", "allow")}
    phrase = HTTPStatus(start["status"]).phrase
    return problem(BY_STATUS.get(start["status"], MalformedRequest)(phrase), request_id, start["status"], kept, path)


def _origin_form(path: str) -> str:
    """`http://host/live` -> `/live`."""
    found = re.match(r"https?://[^/]*", path, re.IGNORECASE)
    return path[found.end() :] or "/" if found else path


def _request_id(given: str) -> str:
    return given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else str(ULID())
