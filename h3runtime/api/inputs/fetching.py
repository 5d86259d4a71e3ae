"""A medium by its URL: fetched from an allowed host, to a file of ours, within limits of size, time and redirects.

    judge the URL and its host -> resolve once -> judge the addresses -> connect to one of those -> ask -> stream
              ^-------------------------- a redirect: all of it again ---------------------------------'

The connection goes to the very address that was judged, so a name that resolves otherwise a moment later gains nothing.
TLS is verified against the host's name. There are no proxies, cookies, credentials and encodings. A refusal is
`InvalidRequest` with the legal hosts; whatever the other server does wrong is `BadMedia`. Fed by `copies`.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin

from h3runtime import __version__
from h3runtime.api.inputs.hosts import AllowedHosts, NotFetchedError, Place, is_public, place_of
from h3runtime.errors import Offence, bad_media, invalid
from h3runtime.media.delivery import FULL
from h3runtime.media.worker import Worker

REDIRECTS = (301, 302, 303, 307, 308)
BLOCK = 1 << 16
LEGAL = "a URL that answers 200 with the medium, in time"

_T = TypeVar("_T")
SocketAddress = tuple[Any, ...]
Resolve = Callable[[str, int], Sequence[tuple[socket.AddressFamily, SocketAddress]]]


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Seconds: to connect to one address, without a byte, and for one medium with all its redirects."""

    connect_seconds: float = 5.0
    stall_seconds: float = 10.0
    total_seconds: float = 60.0
    redirects: int = 5


class Fetcher:
    """Fetches the media of one request, together at most `max_bytes`. resolve, tls: others in tests."""

    def __init__(
        self,
        allow: Sequence[str],
        max_bytes: int,
        limits: FetchLimits | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = AllowedHosts(allow)
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._limits = limits or FetchLimits()
        self._resolve = resolve or _resolved
        self._tls = tls

    def fetch(self, url: str, field: str, target: Path) -> str:
        """Write what is at `url` to `target`; its SHA-256 in hex digits.

        `InvalidRequest` for a URL, host or address that isn't allowed, `BadMedia` for all else; both name `field`.
        """
        until = time.monotonic() + self._limits.total_seconds
        with self._told(field):
            for _ in range(self._limits.redirects + 1):
                with self._answer(place_of(url), until) as response:
                    if response.status not in REDIRECTS:
                        return self._take(response, target)
                    url = _redirected(url, response)
            raise _ServerFault(f"the server redirects more than {self._limits.redirects} times")

    @contextmanager
    def _told(self, field: str) -> Iterator[None]:
        """Whatever goes wrong, as one of our errors."""
        try:
            yield
        except NotFetchedError as error:
            raise invalid([Offence(field, str(error), self._hosts.legal)]) from None
        except _ServerFault as error:
            raise bad_media(field, str(error), error.legal) from None
        except ssl.SSLError:
            raise bad_media(field, "the server's TLS can't be verified", LEGAL) from None
        except TimeoutError:
            raise bad_media(field, "the server took too long", LEGAL) from None
        except (OSError, http.client.HTTPException) as error:
            # Our own disk, not the other server.
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise bad_media(field, "the server can't be reached, or its answer broke off", LEGAL) from None

    @contextmanager
    def _answer(self, place: Place, until: float) -> Iterator[http.client.HTTPResponse]:
        """The head of the answer, its body still to be read."""
        with closing(self._connect(place, until)) as connected:
            connection = http.client.HTTPConnection(place.host, place.port)
            connection.sock = _Timed(connected, self._limits.stall_seconds, until)
            connection.putrequest("GET", place.target, skip_host=True, skip_accept_encoding=True)
            for name, value in _headers(place).items():
                connection.putheader(name, value)
            connection.endheaders()
            with connection.getresponse() as response:
                yield response

    def _connect(self, place: Place, until: float) -> socket.socket:
        addresses = self._addresses(place, until)
        for number, (family, address) in enumerate(addresses, 1):
            connected = socket.socket(family, socket.SOCK_STREAM)
            try:
                connected.settimeout(_within(self._limits.connect_seconds, until))
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
        found = _in_time(lambda: self._resolve(place.host, place.port), _within(self._limits.stall_seconds, until))
        return [(family, address) for family, address in found if may_be_private or is_public(str(address[0]))]

    def _secured(self, connected: socket.socket, place: Place) -> ssl.SSLSocket:
        tls = self._tls or ssl.create_default_context()
        return tls.wrap_socket(connected, server_hostname=place.host)

    def _take(self, response: http.client.HTTPResponse, target: Path) -> str:
        if response.status != 200:
            raise _ServerFault(f"the server answered {response.status}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _ServerFault("the server sent it encoded, which wasn't asked for")
        if (response.length or 0) > self._left:
            raise self._too_large()
        digest = hashlib.sha256()
        with target.open("wb") as file:
            while block := response.read1(BLOCK):
                self._left -= len(block)
                if self._left < 0:
                    raise self._too_large()
                digest.update(block)
                file.write(block)
        if response.length:
            raise _ServerFault(f"the answer broke off {response.length} bytes before its end")
        return digest.hexdigest()

    def _too_large(self) -> _ServerFault:
        return _ServerFault("it is too large", f"at most {self._max_bytes} bytes, all URLs of a request together")


class _ServerFault(Exception):
    """What the other server did wrong."""

    def __init__(self, why: str, legal: str = LEGAL) -> None:
        super().__init__(why)
        self.legal = legal


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


def _redirected(url: str, response: http.client.HTTPResponse) -> str:
    location: str | None = response.headers["Location"]
    if not location:
        raise _ServerFault("the server redirects to nowhere")
    try:
        return urljoin(url, location)
    except ValueError:
        raise NotFetchedError("is redirected to what is not a URL") from None


def _headers(place: Place) -> dict[str, str]:
    return {
        "Host": place.authority,
        "User-Agent": f"h3runtime/{__version__}",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }


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
