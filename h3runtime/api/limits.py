"""How much of a body is taken in and how slowly, and how a connection with too much of one is ended.

Pure ASGI, around the whole app. A body that announces more than its limit is refused before any of it is asked for; one
that doesn't say is counted as it comes. A client in the middle of its body that sends next to nothing for
`H3_READ_SECONDS` is ended: a stalled upload holds a folder and a connection. Only the time in which we wait for it
counts, not that of a slow disk. When the server drains nothing can come of a body any more, so all are ended. Deadlines
of the request's head are `connections`' part.

Closing a connection while the client still sends makes its system throw the answer away unread, so after a refusal the
rest is read and dropped for a moment. `refuse` is that for whoever answers without having read the body.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h3runtime.errors import BodyTooLarge, Draining, H3Error, MalformedRequest, RateLimited

LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 2**20
LEAST_BYTES = 1024
"""What a client must send within `H3_READ_SECONDS`, or the end of its body. A byte now and then is a stall too."""
DRAIN_POLL = 0.5
"""Seconds between looks at whether the server drains, while a body is waited for or judged."""
SHUTTING_DOWN = "the server is shutting down and takes no new jobs"
MAX_SUBMISSIONS = 256
"""Requests of one owner that are read or judged at once. Each holds an upload's folder; a valve, not a queue."""


class BodyLimit:
    """`BodyTooLarge` out of `receive` for a body above its limit: `upload_bytes` for multipart, else `json_bytes`.
    `MalformedRequest` out of it for one that stalls for `read_seconds`, `Draining` if the server shuts down first."""

    def __init__(
        self,
        app: ASGIApp,
        json_bytes: int,
        upload_bytes: int,
        read_seconds: float,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._json_bytes = json_bytes
        self._upload_bytes = upload_bytes
        self._read_seconds = read_seconds
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").lower().startswith("multipart/")
        limit = self._upload_bytes if is_form else self._json_bytes
        announced = headers.get("content-length", "")
        size = int(announced) if announced.isdecimal() else 0
        pace = _Pace(self._read_seconds, self._is_draining)
        gate = _Gate(receive, _Parting(receive, send, headers), limit, size, pace)
        await self._app(scope, gate.receive, gate.send)


async def refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without reading the body; what of it comes all the same is dropped for a moment, then the client is."""
    headers = Headers(scope=scope)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    await response(scope, receive, _Parting(receive, send, headers).part if has_body else send)


class Submissions:
    """How many requests each owner has being read or judged; who waits for a job's end no longer counts."""

    def __init__(self, limit: int = MAX_SUBMISSIONS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, owner: str) -> Iterator[None]:
        """Count one while it lasts. `RateLimited` above the limit."""
        with self._lock:
            if self._held[owner] >= self._limit:
                raise RateLimited(f"{self._limit} requests of yours are being read already")
            self._held[owner] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[owner] -= 1
                if not self._held[owner]:
                    del self._held[owner]


class _Parting:
    """The answer to a client whose body isn't read to its end, after which the connection closes."""

    def __init__(self, receive: Receive, send: Send, headers: Headers) -> None:
        self._receive = receive
        self.send = send
        # Who asks first whether to send a body sends none after a refusal.
        self.sends_on = headers.get("expect", "").lower() != "100-continue"

    async def part(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await self.send(message)
        elif message.get("more_body", False):
            await self.send(message)
        else:
            await self.send({**message, "more_body": True})
            if self.sends_on:
                await self._linger()
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

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


class _Gate:
    """One request's two channels: counted, timed and, after a refusal, ended gently."""

    def __init__(self, receive: Receive, parting: _Parting, limit: int, announced: int, pace: _Pace) -> None:
        self._receive = receive
        self._parting = parting
        self._send = parting.send
        self._limit = limit
        self._announced = announced
        self._seen = 0
        self._complete = False
        self._pace = pace

    async def receive(self) -> Message:
        if self._announced > self._limit:
            self._refuse(BodyTooLarge(f"the body is larger than {self._limit} bytes"))
        if self._complete:
            # From here on it only tells that the client has left, which may take as long as it likes.
            return await self._receive()
        try:
            message = await self._pace.next(self._receive)
        except (Draining, MalformedRequest) as error:
            self._parting.sends_on = isinstance(error, Draining)
            self._refuse(error)
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            self._refuse(BodyTooLarge(f"the body is larger than {self._limit} bytes"))
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        await self._send(message)

    def _refuse(self, error: H3Error) -> NoReturn:
        self._send = self._parting.part
        raise error


class _Pace:
    """How long a body may still be waited for: `seconds` for each `LEAST_BYTES`."""

    def __init__(self, seconds: float, is_draining: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._is_draining = is_draining
        self._left = seconds
        self._bytes = 0

    async def next(self, receive: Receive) -> Message:
        """The next message. `MalformedRequest` if it doesn't come in time, `Draining` if there is no use for it."""
        began = time.monotonic()
        message = await self._waited(receive, began + self._left)
        self._left = max(0.0, self._left - (time.monotonic() - began))
        self._bytes += len(message.get("body", b""))
        if self._bytes >= LEAST_BYTES:
            self._left, self._bytes = self._seconds, 0
        return message

    async def _waited(self, receive: Receive, until: float) -> Message:
        while True:
            left = until - time.monotonic()
            try:
                async with asyncio.timeout(min(DRAIN_POLL, max(0.0, left))):
                    return await receive()
            except TimeoutError:
                if self._is_draining():
                    raise Draining(SHUTTING_DOWN) from None
                if left <= DRAIN_POLL:
                    slow = f"the client sent less than {LEAST_BYTES} bytes of its body in {self._seconds:g} s"
                    raise MalformedRequest(slow) from None
