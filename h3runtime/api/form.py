"""A multipart/form-data body (RFC 7578) while it goes by: texts into memory, files to a folder.

Which parts are texts is the reader's to say. Files lie under names that we choose; a client's file name is never used.
Sizes of whole bodies are kept by `limits`, those of texts here. Fed by `body` and by the OpenAI shape.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from anyio.to_thread import run_sync
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from h3runtime.errors import BodyTooLarge, MalformedRequest

MAX_PART_HEADER = 8192


@dataclass(frozen=True, slots=True)
class Part:
    """What a part's headers say. media_type: lower case, "" if it says none. is_file: it has a file name."""

    name: str
    media_type: str
    is_file: bool


@dataclass(frozen=True, slots=True)
class Form:
    """A body as it came, in the order of its parts. files: by part name, the last of those that share one."""

    texts: list[tuple[Part, bytes]] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    """Names that a file shares with another part."""


@dataclass(frozen=True, slots=True)
class FormRules:
    """is_text: which parts are kept in memory. max_parts, max_text: of all texts together, in bytes."""

    is_text: Callable[[Part], bool]
    max_parts: int
    max_text: int


async def read_form(boundary: bytes, stream: AsyncIterator[bytes], folder: Path, rules: FormRules) -> Form:
    """The whole form. `MalformedRequest`, `BodyTooLarge`, `OSError`.

    folder: where files go; made when the first one comes.
    """
    if not boundary:
        raise MalformedRequest("multipart/form-data without a boundary")
    reader = _Reader(folder, rules)
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        async for chunk in stream:
            await run_sync(parser.write, chunk)
        parser.finalize()
    except FormParserError as error:
        raise MalformedRequest(f"the multipart body is broken: {error}") from None
    finally:
        reader.close()
    return reader.form()


class _Reader:
    """What the multipart parser calls while a body goes by."""

    def __init__(self, folder: Path, rules: FormRules) -> None:
        self._folder = folder
        self._rules = rules
        self._form = Form()
        self._parts = self._text_bytes = 0
        self._ended = False
        self._header = (bytearray(), bytearray())
        self._headers: dict[bytes, bytes] = {}
        self._texts: list[tuple[Part, bytearray]] = []
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

    def form(self) -> Form:
        if not self._ended:
            raise MalformedRequest("the multipart body ends before its last boundary")
        self._form.texts.extend((part, bytes(text)) for part, text in self._texts)
        return self._form

    def _begin_part(self) -> None:
        self._parts += 1
        self._headers.clear()
        if self._parts > self._rules.max_parts:
            raise MalformedRequest(f"more than {self._rules.max_parts} parts")

    def _into(self, side: int) -> Callable[[bytes, int, int], None]:
        def add(data: bytes, start: int, end: int) -> None:
            self._header[side].extend(data[start:end])
            if len(self._header[side]) > MAX_PART_HEADER:
                raise MalformedRequest("a part's header is too long")

        return add

    def _end_header(self) -> None:
        name, value = (bytes(side) for side in self._header)
        if name.lower() in (b"content-disposition", b"content-type"):
            self._headers[name.lower()] = value
        for side in self._header:
            side.clear()

    def _begin_data(self) -> None:
        part = _part_of(self._headers)
        if part.name in self._form.files or (not self._rules.is_text(part) and part.name in self._text_names()):
            self._form.twice.append(part.name)
        if self._rules.is_text(part):
            self._sink = bytearray()
            self._texts.append((part, self._sink))
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / str(self._parts)
        self._form.files[part.name] = path
        self._sink = path.open("wb")

    def _text_names(self) -> set[str]:
        return {part.name for part, _ in self._texts}

    def _data(self, data: bytes, start: int, end: int) -> None:
        if isinstance(self._sink, bytearray):
            self._text_bytes += end - start
            if self._text_bytes > self._rules.max_text:
                name = self._texts[-1][0].name
                raise BodyTooLarge(f"the part {ascii(name)[:60]} is larger than {self._rules.max_text} bytes")
            self._sink.extend(data[start:end])
        elif self._sink is not None:
            self._sink.write(data[start:end])

    def _end(self) -> None:
        self._ended = True


def _part_of(headers: dict[bytes, bytes]) -> Part:
    _, options = parse_options_header(headers.get(b"content-disposition", b""))
    if b"name" not in options:
        raise MalformedRequest("a part has no name")
    media_type, _ = parse_options_header(headers.get(b"content-type", b""))
    name = options[b"name"].decode("utf-8", "replace")
    return Part(name, media_type.decode("latin-1").lower(), b"filename" in options)
