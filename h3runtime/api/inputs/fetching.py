"""A medium by its URL: fetched from an allowed host, to a file of ours, within limits of size, time and redirects.

    judge the URL and its host -> connect (`connecting`) -> ask -> stream
              ^--------- a redirect: all of it again ---------'

There are no cookies, credentials and encodings. A refusal is `InvalidRequest` with the legal hosts; whatever the other
server does wrong is `BadMedia`. Fed by `copies`.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from h3runtime.api.inputs.connecting import Connector, Resolve, own_headers
from h3runtime.api.inputs.hosts import AllowedHosts, NotFetchedError, Place, place_of
from h3runtime.errors import Offence, bad_media, invalid
from h3runtime.media.delivery import FULL

REDIRECTS = (301, 302, 303, 307, 308)
BLOCK = 1 << 16
LEGAL = "a URL that answers 200 with the medium, in time"


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
        connect, stall = self._limits.connect_seconds, self._limits.stall_seconds
        self._connector = Connector(self._hosts, connect, stall, resolve, tls)

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
        with self._connector.connected(place, until) as connection:
            connection.putrequest("GET", place.target, skip_host=True, skip_accept_encoding=True)
            for name, value in _headers(place).items():
                connection.putheader(name, value)
            connection.endheaders()
            with connection.getresponse() as response:
                yield response

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


def _redirected(url: str, response: http.client.HTTPResponse) -> str:
    location: str | None = response.headers["Location"]
    if not location:
        raise _ServerFault("the server redirects to nowhere")
    try:
        return urljoin(url, location)
    except ValueError:
        raise NotFetchedError("is redirected to what is not a URL") from None


def _headers(place: Place) -> dict[str, str]:
    return {**own_headers(place), "Accept": "*/*", "Accept-Encoding": "identity"}
