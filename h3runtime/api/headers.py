"""What is said to browsers: security headers, CORS, and no to requests that a foreign page made them send.

    security headers  on every answer; a route may set its own policy. Clips and JSON run nothing, so one strict policy
                      fits them and the page alike
    CORS              off. `H3_CORS_ORIGINS` names origins whose pages may read answers and send our headers; their
                      preflights are answered here, before anybody asks for a key, since browsers send none with them
    foreign pages     a form of any page can POST multipart to a server on the reader's own machine without a preflight.
                      Without keys nothing else would stop it, so what changes anything is refused if the browser says
                      that another origin sent it (`Sec-Fetch-Site`, else `Origin` beside `Host`). With keys a forged
                      request bears none. It is a 401: the contract has no 403, and a key is what would help
    rebinding         a name of the attacker's that suddenly resolves to 127.0.0.1 makes his page "ours". A server that
                      is bound to loopback and asks for no key therefore answers a browser only under loopback's own
                      names, its configured one and those of `H3_CORS_ORIGINS` (a proxy with a public name is listed
                      there). Programs may send any `Host`

Pure ASGI, inside `requests` and outside `auth`. Fed by settings.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h3runtime.api.auth import Keys, is_loopback
from h3runtime.api.limits import refuse
from h3runtime.api.problems import problem
from h3runtime.errors import H3Error, MalformedRequest, Unauthorized
from h3runtime.settings import Settings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
ALLOWED_METHODS = "GET, HEAD, POST, DELETE"
ALLOWED_HEADERS = "authorization, content-type, prefer, idempotency-key, last-event-id, x-request-id, range"
EXPOSED_HEADERS = "Location, X-Request-ID, Retry-After, Idempotent-Replay, ETag, Content-Range"
PREFLIGHT_SECONDS = 600
"""How long a browser may remember a preflight; a changed list of origins counts after that."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Browsers:
    """Wraps the app; see the module."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: Keys) -> None:
        self._app = app
        self._origins = frozenset(settings.cors_origins)
        self._has_keys = bool(keys)
        configured = {_name(settings.host), *(_name(urlsplit(origin).netloc) for origin in self._origins)}
        self._names = LOOPBACK_NAMES | configured if is_loopback(settings.host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "").lower()
        allowed = origin if origin in self._origins else ""
        out = self._out(send, allowed)
        if allowed and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await refuse(_preflight(), scope, receive, out)
        elif error := self._fault(scope["method"], headers, allowed):
            request_id = str(scope.get("state", {}).get("request_id", ""))
            await refuse(problem(error, request_id, path=scope["path"]), scope, receive, out)
        else:
            await self._app(scope, receive, out)

    def _fault(self, method: str, headers: Headers, allowed: str) -> H3Error | None:
        if self._has_keys:
            return None
        if self._names is not None and _is_browser(headers) and _name(headers.get("host", "")) not in self._names:
            return MalformedRequest(
                "this server isn't known under that Host; H3_CORS_ORIGINS can name a proxy's origin"
            )
        if method not in SAFE_METHODS and not allowed and _is_foreign(headers):
            return Unauthorized("a page of another origin sent this; H3_CORS_ORIGINS can allow one, or a key")
        return None

    def _out(self, send: Send, allowed: str) -> Send:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
                if self._origins:
                    headers.add_vary_header("Origin")
                if allowed:
                    headers["access-control-allow-origin"] = allowed
                    headers["access-control-expose-headers"] = EXPOSED_HEADERS
            await send(message)

        return with_headers


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": ALLOWED_METHODS,
            "access-control-allow-headers": ALLOWED_HEADERS,
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        },
    )


def _is_browser(headers: Headers) -> bool:
    """Over plain http to a strange name a GET bears neither of the first two, but every browser says Mozilla."""
    return "origin" in headers or "sec-fetch-site" in headers or "mozilla/" in headers.get("user-agent", "").lower()


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser sent it for a page of another origin. It knows best; a proxy may have changed `Host`."""
    if site := headers.get("sec-fetch-site"):
        return site.lower() not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and _authority(origin) != headers.get("host", "").lower()


def _authority(origin: str) -> str:
    """`https://a.example:8443` -> `a.example:8443`; "" for what is no origin, `null` for one."""
    match = re.fullmatch(r"https?://([^/]+)", origin.strip().lower())
    return match[1] if match else ""


def _name(host: str) -> str:
    """The name in a `Host`, without its port and without the brackets of an IPv6 address."""
    match = re.fullmatch(r"\[([^\]]*)\](?::\d*)?|([^:]*)(?::\d*)?", host.strip().lower())
    return next((part for part in match.groups() if part is not None), "") if match else host.strip().lower()
