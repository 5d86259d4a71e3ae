"""Reading a request's body: JSON, or multipart with one part `request` and a file part per upload.

`service` feeds the stream, `admission` reads the `Delivery`. Sizes are kept by `limits` while the body comes in. Files
go straight to a folder of the request's own below the data folder (`form`). JSON is taken as RFC 8259 has it, but a key
that is given twice is refused (400): which of the two would be meant is anybody's guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from python_multipart.multipart import parse_options_header

from h3runtime.api.form import Form, FormRules, Part, read_form
from h3runtime.api.request import MAX_MEDIA
from h3runtime.errors import InvalidRequest, MalformedRequest, Offence, UnsupportedMediaType, invalid

REQUEST_PART = "request"
MAX_PARTS = MAX_MEDIA
"""One of them is the request itself."""
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


def named_parts(value: Any) -> Iterator[str]:
    """Parts that a request names as uploads, wherever it does: one in a field that has another fault is named all the
    same."""
    if isinstance(value, dict):
        if isinstance(part := value.get("upload"), str):
            yield part
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from named_parts(item)


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
    form = await read_form(boundary, stream, folder, FormRules(_is_request, MAX_PARTS, max_json))
    return await run_sync(_delivery, form)


def _is_request(part: Part) -> bool:
    return part.name == REQUEST_PART


def _delivery(form: Form) -> Delivery:
    if not form.texts:
        raise invalid([Offence(REQUEST_PART, "this part is missing", "a part of this name that holds the JSON")])
    names = [*form.twice, *[REQUEST_PART] * (len(form.texts) - 1)]
    twice = [Offence(name, "two parts have this name", "one part") for name in names]
    return Delivery(parse_object(form.texts[-1][1]), form.files, twice)
