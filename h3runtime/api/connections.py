"""What a client may do with a connection before and between its requests.

    no whole request head within H3_READ_SECONDS     400 and closed; silently, if nothing came at all
    idle after an answer                             closed after 75 s
    the rest of a body that was answered unread      dropped for a moment, then closed
    a head of more than 64 KiB, or no HTTP           400 and closed
    more connections than there is room for          the one that has idled longest is closed for a new one; where none
                                                     idles, the new one gets 429 and is closed

uvicorn has a limit for the second only, and a count of connections above which it answers 503 to everybody, probes
included: whoever opens idle connections would take a healthy server out of service. This is its h11 protocol with
these rules around it. Bodies are timed by `limits`, where it is known whether we wait for the client or it for us.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from ulid import ULID
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from h3runtime.api.limits import LINGER_SECONDS
from h3runtime.api.problems import problem
from h3runtime.errors import H3Error, MalformedRequest, RateLimited

BACKLOG = 128
MAX_HEAD_BYTES = 64 * 1024
MAX_CONNECTIONS = 1000
SPARE_FILES = 256
"""Open files beyond the connections: clips being sent, uploads, the store, the engine's pipes."""
IDLE_SECONDS = 75
"""Longer than clients and proxies keep an idle connection (httpx and the SDKs on it 5 s, aiohttp 15, nginx 60), so that
it is they who close it. Whoever closes while a request is on its way resets it: with uvicorn's own 5 s an httpx client
that came back after just as long was cut off now and then."""
CLOSE_SECONDS = 3
"""What open connections get to finish once everything else has ended. Without a limit one stream blocks the exit."""


class ServerConfig(uvicorn.Config):
    """uvicorn's settings for this service. read_seconds: a client's longest silence. room: connections at once."""

    def __init__(
        self, app: ASGIApp, read_seconds: float, tls: ssl.SSLContext | None = None, room: int | None = None
    ) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ssl_context_factory=(lambda _config, _default: tls) if tls else None,
        )
        self.read_seconds = read_seconds
        self.room = room or room_for_connections()


def room_for_connections() -> int:
    """As many as this process may open files for, and no more than `MAX_CONNECTIONS`."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, files - SPARE_FILES))


class Connection(H11Protocol):
    """One client's connection; see the module."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ServerConfig)
        self._read_seconds = config.read_seconds
        self._room = config.room
        self._head: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._idle_since = time.monotonic()
        self._parted = False

    @property
    def idle_since(self) -> float | None:
        """On the monotonic clock; None while a request of it is being answered."""
        return self._idle_since if self.cycle is None or self.cycle.response_complete else None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the library
        super().connection_made(transport)
        if len(self.connections) <= self._room or self._make_room():
            self._watch_head()
        else:
            self._part(RateLimited("this server has as many connections as it can serve; try again in a moment"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._head = _cancelled(self._head)
        self._rest = _cancelled(self._rest)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._parted:
            return
        super().data_received(data)
        if not self._parted and not self.transport.is_closing():
            self._watch_head()
            self._watch_rest()

    def on_response_complete(self) -> None:
        self._idle_since = time.monotonic()
        super().on_response_complete()
        if not self.transport.is_closing():
            self._watch_rest()

    def send_400_response(self, msg: str) -> None:
        """What the library calls for what is no HTTP."""
        self._part(MalformedRequest(msg))

    def _watch_head(self) -> None:
        """Time the head of a request while one is awaited, and nothing else."""
        if self.conn.their_state is not h11.IDLE:
            self._head = _cancelled(self._head)
        elif self.cycle is not None and not self._begun:
            # What came was the end of a body that had been answered before.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self._later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        elif self._head is None:
            self._head = self._later(self._read_seconds, self._head_is_overdue)

    def _watch_rest(self) -> None:
        """Time the rest of a body that has been answered. With it may have come the head of the next request, which is
        not to be ended for the sake of the one before."""
        answered = self.cycle is not None and self.cycle.response_complete
        if not answered or self.conn.their_state is not h11.SEND_BODY:
            self._rest = _cancelled(self._rest)
        elif self._rest is None:
            self._rest = self._later(LINGER_SECONDS, self.transport.close)

    @property
    def _begun(self) -> bytes:
        """What has come of the next head."""
        begun, _ = self.conn.trailing_data
        return begun

    def _head_is_overdue(self) -> None:
        if self._begun:
            self._part(MalformedRequest(f"the client sent no whole request head in {self._read_seconds:g} s"))
        else:
            self.transport.close()

    def _make_room(self) -> bool:
        """Close the connection that has idled longest, this one apart. False if none idles."""
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        idle = [(since, other) for other in others if (since := other.idle_since) is not None]
        if not idle:
            return False
        oldest = min(idle, key=lambda pair: pair[0])[1]
        # Counted out at once: more may come before the loop gets to its end.
        self.connections.discard(oldest)
        oldest.transport.close()
        return True

    def _part(self, error: H3Error) -> None:
        """Answer with a problem if no answer has begun, and close; not at once, since a client that still sends would
        have the answer thrown away by its system."""
        self._parted = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = problem(error, request_id := str(ULID()))
            told = [(b"x-request-id", request_id.encode()), (b"connection", b"close"), *answer.raw_headers]
            told += self.server_state.default_headers
            self._send(h11.Response(status_code=answer.status_code, headers=told))
            self._send(h11.Data(data=bytes(answer.body)))
            self._send(h11.EndOfMessage())
        if self.cycle is not None and not self.cycle.response_complete:
            # Whoever reads its body learns that there will be no more of it.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._head = _cancelled(self._head)
        self._rest = self._later(LINGER_SECONDS, self.transport.close)

    def _send(self, event: h11.Event) -> None:
        with suppress(h11.LocalProtocolError):
            self.transport.write(self.conn.send(event) or b"")

    def _later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, act)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """None, for where it was kept."""
    if timer is not None:
        timer.cancel()
    return None
