"""One request to the server and its answer, by `http.client`, or one error that says what went wrong.

A connection serves one request: what this client does is rare and long, and a connection that idles may be gone when it
is needed. Fed by `client`, `watching` and `downloading`.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from h3runtime.client.address import Address
from h3runtime.client.errors import Unreachable, refusal_of
from h3runtime.errors import Offence, invalid


@dataclass(frozen=True, slots=True)
class Body:
    """What is sent: `chunks` give exactly `length` bytes."""

    content_type: str
    length: int
    chunks: Iterable[bytes]


class Answer:
    """A success whose body the caller reads; a connection that breaks meanwhile is `Unreachable`.

    headers: names in lower case.
    """

    def __init__(self, address: Address, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}
        self._address = address
        self._response = response

    def whole(self) -> bytes:
        with _connected(self._address):
            return self._response.read()

    def lines(self) -> Iterator[bytes]:
        """Each as soon as it is there."""
        while line := self._read(self._response.readline):
            yield line

    def blocks(self, most: int) -> Iterator[bytes]:
        """Up to `most` bytes each. A body that ends before its announced length just ends."""
        while block := self._read(lambda: self._response.read1(most)):
            yield block

    def _read(self, read: Callable[[], bytes]) -> bytes:
        with _connected(self._address):
            return read()


class Wire:
    """Requests to one server, with its key. timeout: seconds without a byte."""

    def __init__(self, address: Address, key: str | None, timeout: float) -> None:
        if key is not None and (not key.isascii() or any(character <= " " for character in key) or not key):
            raise invalid([Offence("key", "is no key", "one word of ASCII")])
        self.address = address
        self.timeout = timeout
        self.key = key

    def json(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = 0.0,
        legal: frozenset[int] = frozenset(),
    ) -> Any:
        """The answer's JSON. `Refused` for a status that is no success and not in `legal`. patience: seconds that the
        server may think longer than usual."""
        with self.answer(method, path, body, headers, patience, legal) as answer:
            told = answer.whole()
        try:
            return json.loads(told)
        except ValueError:
            raise Unreachable(f"{self.address.url} answers something else than JSON: is it an h3runtime?") from None

    @contextmanager
    def answer(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = 0.0,
        legal: frozenset[int] = frozenset(),
    ) -> Iterator[Answer]:
        """An answer with its body still to come; the rest as `json`."""
        connection = self._connection(self.timeout + patience)
        try:
            answer = self._asked(connection, method, path, body, dict(headers or {}))
            if not 200 <= answer.status < 300 and answer.status not in legal:
                raise refusal_of(answer.status, answer.headers, answer.whole())
            yield answer
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        address = self.address
        if not address.is_tls:
            return http.client.HTTPConnection(address.host, address.port, timeout=timeout)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, address.port, timeout=timeout, context=context)

    def _asked(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Body | None,
        headers: dict[str, str],
    ) -> Answer:
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            headers |= {"Content-Type": body.content_type, "Content-Length": str(body.length)}
        with _connected(self.address, was_sent=False):
            connection.connect()
        chunks = _Chunks(body.chunks) if body else None
        with _connected(self.address, chunks):
            # A server that refuses a body closes while it is still sent; its answer is there all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self.address.base + path, body=chunks, headers=headers)
            return Answer(self.address, connection.getresponse())


class _Chunks:
    """An iterator that remembers what went wrong in it: that is about a file, not about the connection."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self.error: OSError | None = None

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except OSError as error:
            self.error = error
            raise


@contextmanager
def _connected(address: Address, chunks: _Chunks | None = None, was_sent: bool = True) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if chunks is not None and chunks.error is not None:
            raise chunks.error from None
        raise Unreachable(f"{address.url} can't be reached: {_why(error)}", was_sent=was_sent) from error


def _why(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "it does not answer"
        case ssl.SSLCertVerificationError():
            return error.verify_message
        case http.client.RemoteDisconnected():
            return "it closed the connection"
        case http.client.IncompleteRead():
            return "the connection broke"
        case http.client.HTTPException():
            return "it does not speak HTTP"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
