"""How much of a body is taken in, and how a connection with too much of one is ended.

Pure ASGI, around the whole app. A body that announces more than its limit is refused before any of it is asked for; one
that doesn't say is counted as it comes. Closing a connection while the client still sends makes its system throw the
answer away unread, so after a refusal the rest is read and dropped for a moment.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h3runtime.errors import BodyTooLarge

LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 2**20


class BodyLimit:
    """`BodyTooLarge` out of `receive` for a body above its limit: `upload_bytes` for multipart, else `json_bytes`."""

    def __init__(self, app: ASGIApp, json_bytes: int, upload_bytes: int) -> None:
        self._app = app
        self._json_bytes = json_bytes
        self._upload_bytes = upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").lower().startswith("multipart/")
        limit = self._upload_bytes if is_form else self._json_bytes
        announced = headers.get("content-length", "")
        gate = _Gate(receive, send, limit, int(announced) if announced.isdecimal() else 0)
        await self._app(scope, gate.receive, gate.send)


class _Gate:
    """One request's two channels, counted and, after a refusal, ended gently."""

    def __init__(self, receive: Receive, send: Send, limit: int, announced: int) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        self._announced = announced
        self._seen = 0
        self._refused = False

    async def receive(self) -> Message:
        if self._announced > self._limit:
            self._refuse()
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            self._refuse()
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            await self._send(message)
        elif message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await self._send(message)
        elif message.get("more_body", False):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _refuse(self) -> None:
        self._refused = True
        raise BodyTooLarge(f"the body is larger than {self._limit} bytes")

    async def _linger(self) -> None:
        until = time.monotonic() + LINGER_SECONDS
        dropped = 0
        while dropped < LINGER_BYTES and (left := until - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(self._receive(), left)
            except TimeoutError:
                return
            dropped += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
