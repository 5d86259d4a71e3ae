"""Reading a request's body: JSON, or multipart with one part `request` and a file part per upload.

`app` feeds the stream, `admission` reads the `Delivery`. Sizes are kept by `limits` while the body comes in. Files go
straight to a folder of the request's own below the data folder, under names that we choose; a client's file name is
never used. JSON is taken as RFC 8259 has it, but a key that is given twice is refused (400): which of the two would be
meant is anybody's guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from anyio.to_thread import run_sync
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from h3runtime.api.request import MAX_MEDIA
from h3runtime.errors import BodyTooLarge, InvalidRequest, MalformedRequest, Offence, UnsupportedMediaType, invalid

REQUEST_PART = "request"
MAX_PARTS = MAX_MEDIA
"""One of them is the request itself."""
MAX_PART_HEADER = 8192
MAX_DEPTH = 32
"""Objects and lists within each other; no field is a fourth as deep, and some libraries recurse for each."""
MAX_INTEGER_DIGITS = 64
"""Longer numbers are none that any field takes, and Python refuses to read them from some length on."""
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class Delivery:
    """A body as it came: `request` is the JSON object, `files` are uploads by part name, `offences` about the parts."""

    request: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    offences: list[Offence] = field(default_factory=list)


async def read_delivery(content_type: str, stream: AsyncIterator[bytes], folder: Path, max_json: int) -> Delivery:
    """The whole body. `UnsupportedMediaType`, `MalformedRequest`, `BodyTooLarge`, or `InvalidRequest` for no object.

    folder: where uploads go; made when the first one comes.
    """
    kind, options = parse_options_header(content_type)
    if kind == b"application/json":
        if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
            raise UnsupportedMediaType("JSON is UTF-8; no other charset is read")
        body = b"".join([chunk async for chunk in stream])
        return Delivery(await run_sync(parse_object, body))
    if kind == b"multipart/form-data":
        return await _read_form(options.get(b"boundary", b""), stream, folder, max_json)
    shown = ascii(content_type)[:80]
    raise UnsupportedMediaType(f"content type {shown} is not read; use application/json or multipart/form-data")


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object, numbers as they are (NaN and Infinity too: the fields refuse them by name)."""
    parsed = parse_json(body, "the body")
    if not isinstance(parsed, dict):
        raise InvalidRequest("the body is not an object", [Offence("body", "is not an object", "a JSON object")])
    return parsed


def parse_json(text: bytes, name: str) -> Any:
    """Any JSON that a field could hold. `MalformedRequest` saying what is wrong with what is called `name`."""
    try:
        parsed = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique, parse_int=_integer)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise MalformedRequest(f"{name} is not JSON: {error}") from None
    _judge_values([parsed])
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise MalformedRequest(f"the field {ascii(name)[:60]} is given twice", [Offence(name, "is given twice")])
        found[name] = value
    return found


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else float("inf")


def _judge_values(parsed: list[Any]) -> None:
    """Refuse what no field could hold, wherever it is: text that isn't Unicode, depths that aren't meant."""
    level: list[Any] = [parsed]
    for _ in range(MAX_DEPTH + 1):
        texts = [text for value in level for text in _texts(value)]
        if any(not text.isascii() and SURROGATE.search(text) for text in texts):
            raise MalformedRequest("the JSON holds half of a surrogate pair, which is no character")
        level = [item for value in level for item in _inner(value) if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep()


def _inner(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _texts(value: dict[str, Any] | list[Any]) -> Iterator[str]:
    """Keys and texts of one object or list, not of what is in it."""
    if isinstance(value, dict):
        yield from value
    yield from (item for item in _inner(value) if isinstance(item, str))


def _too_deep() -> MalformedRequest:
    return MalformedRequest("the JSON is nested too deeply")


async def _read_form(boundary: bytes, stream: AsyncIterator[bytes], folder: Path, max_json: int) -> Delivery:
    if not boundary:
        raise MalformedRequest("multipart/form-data without a boundary")
    form = _Form(folder, max_json)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for chunk in stream:
            await run_sync(parser.write, chunk)
        parser.finalize()
    except FormParserError as error:
        raise MalformedRequest(f"the multipart body is broken: {error}") from None
    finally:
        form.close()
    return await run_sync(form.delivery)


class _Form:
    """What the multipart parser calls while a body goes by."""

    def __init__(self, folder: Path, max_json: int) -> None:
        self._folder = folder
        self._max_json = max_json
        self._request: bytearray | None = None
        self._files: dict[str, Path] = {}
        self._twice: list[str] = []
        self._parts = 0
        self._ended = False
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._sink: bytearray | IO[bytes] | None = None

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": self._into(0),
            "on_header_value": self._into(1),
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_data,
            "on_part_data": self._data,
            "on_part_end": self.close,
            "on_end": self._end,
        }

    def close(self) -> None:
        if self._sink is not None and not isinstance(self._sink, bytearray):
            self._sink.close()
        self._sink = None

    def delivery(self) -> Delivery:
        if not self._ended:
            raise MalformedRequest("the multipart body ends before its last boundary")
        if self._request is None:
            raise invalid([Offence(REQUEST_PART, "this part is missing", "a part of this name that holds the JSON")])
        twice = [Offence(name, "two parts have this name", "one part") for name in self._twice]
        return Delivery(parse_object(bytes(self._request)), self._files, twice)

    def _begin_part(self) -> None:
        self._parts += 1
        self._disposition = b""
        if self._parts > MAX_PARTS:
            raise MalformedRequest(f"more than {MAX_PARTS} parts")

    def _into(self, side: int) -> Callable[[bytes, int, int], None]:
        def add(data: bytes, start: int, end: int) -> None:
            self._header[side].extend(data[start:end])
            if len(self._header[side]) > MAX_PART_HEADER:
                raise MalformedRequest("a part's header is too long")

        return add

    def _end_header(self) -> None:
        name, value = (bytes(side) for side in self._header)
        if name.lower() == b"content-disposition":
            self._disposition = value
        for side in self._header:
            side.clear()

    def _begin_data(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise MalformedRequest("a part has no name")
        name = options[b"name"].decode("utf-8", "replace")
        if name in self._files or (name == REQUEST_PART and self._request is not None):
            self._twice.append(name)
        if name == REQUEST_PART:
            self._sink = self._request = bytearray()
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / str(self._parts)
        self._files[name] = path
        self._sink = path.open("wb")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if isinstance(self._sink, bytearray):
            if len(self._sink) + end - start > self._max_json:
                raise BodyTooLarge(f"the part {REQUEST_PART!r} is larger than {self._max_json} bytes")
            self._sink.extend(data[start:end])
        elif self._sink is not None:
            self._sink.write(data[start:end])

    def _end(self) -> None:
        self._ended = True
