"""A connection to another server: to an address that was judged, within limits of time.

    judge the host -> resolve once -> judge the addresses -> connect to one of those -> TLS against the host's name

The connection goes to the very address that was judged, so a name that resolves otherwise a moment later gains nothing.
There are no proxies and no cookies. What is asked and what is made of the answer is up to `fetching` and `callbacks`.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from h3runtime import __version__
from h3runtime.api.inputs.hosts import AllowedHosts, NotFetchedError, Place, is_public
from h3runtime.media.worker import Worker

_T = TypeVar("_T")
SocketAddress = tuple[Any, ...]
Resolve = Callable[[str, int], Sequence[tuple[socket.AddressFamily, SocketAddress]]]


class Connector:
    """Connects to allowed hosts. connect_seconds: to one address. stall_seconds: without a byte. resolve, tls: others
    in tests."""

    def __init__(
        self,
        hosts: AllowedHosts,
        connect_seconds: float,
        stall_seconds: float,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = hosts
        self._connect_seconds = connect_seconds
        self._stall_seconds = stall_seconds
        self._resolve = resolve or _resolved
        self._tls = tls

    @contextmanager
    def connected(self, place: Place, until: float) -> Iterator[http.client.HTTPConnection]:
        """Ready for a request. until: on the monotonic clock, the end of all that happens on it.

        `NotFetchedError` for a host or address that isn't allowed, TimeoutError, OSError (`ssl.SSLError` is one).
        """
        with closing(self._connect(place, until)) as connected:
            connection = http.client.HTTPConnection(place.host, place.port)
            connection.sock = _Timed(connected, self._stall_seconds, until)
            yield connection

    def _connect(self, place: Place, until: float) -> socket.socket:
        addresses = self._addresses(place, until)
        for number, (family, address) in enumerate(addresses, 1):
            connected = socket.socket(family, socket.SOCK_STREAM)
            try:
                connected.settimeout(_within(self._connect_seconds, until))
                connected.connect(address)
                return self._secured(connected, place) if place.is_tls else connected
            except BaseException as error:
                connected.close()
                # A certificate that is wrong here is no reason to try the next machine of that name.
                if not isinstance(error, OSError) or isinstance(error, ssl.SSLError) or number == len(addresses):
                    raise
        raise NotFetchedError(f"is on {place.authority}, which is not at a public address")

    def _addresses(self, place: Place, until: float) -> list[tuple[socket.AddressFamily, SocketAddress]]:
        may_be_private = self._hosts.judge(place)
        found = _in_time(lambda: self._resolve(place.host, place.port), _within(self._stall_seconds, until))
        return [(family, address) for family, address in found if may_be_private or is_public(str(address[0]))]

    def _secured(self, connected: socket.socket, place: Place) -> ssl.SSLSocket:
        tls = self._tls or ssl.create_default_context()
        return tls.wrap_socket(connected, server_hostname=place.host)


def own_headers(place: Place) -> dict[str, str]:
    """What each of our requests says of itself."""
    return {"Host": place.authority, "User-Agent": f"h3runtime/{__version__}", "Connection": "close"}


class _Timed:
    """A socket as `http.client` uses one, each of whose waits ends after `stall` seconds or at `until`.

    A timeout of the socket alone would start anew with every byte of a header that drips in. Closing is left to whoever
    opened the socket, since the library closes it while the answer is still being read.
    """

    def __init__(self, connected: socket.socket, stall: float, until: float) -> None:
        self._socket, self._stall, self._until = connected, stall, until

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(_within(self._stall, self._until))
        self._socket.sendall(data)

    def recv_into(self, buffer: memoryview) -> int:
        self._socket.settimeout(_within(self._stall, self._until))
        return self._socket.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", mode
        return io.BufferedReader(_Incoming(self))

    def close(self) -> None:
        pass


class _Incoming(io.RawIOBase):
    """What a timed socket receives, as a stream."""

    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.recv_into(buffer)


def _resolved(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, SocketAddress]]:
    return [(family, address) for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _in_time(ask: Callable[[], _T], seconds: float) -> _T:
    """The system's resolver can't be told how long it may take, so it gets a thread that may be left behind."""
    found: list[_T] = []
    faults: list[Exception] = []

    def run() -> None:
        try:
            found.append(ask())
        except Exception as error:
            faults.append(error)

    worker = Worker(run)
    worker.start()
    worker.join(seconds)
    if faults:
        raise faults[0]
    if not found:
        raise TimeoutError
    return found[0]


def _within(seconds: float, until: float) -> float:
    """`seconds`, or what is left of the time if that is less. `TimeoutError` if none is."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return min(seconds, left)
