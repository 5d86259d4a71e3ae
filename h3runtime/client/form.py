"""A multipart/form-data body with one part `request` and a part per file, read from disk while it is sent.

    --B  Content-Disposition: form-data; name="request"   Content-Type: application/json   {...}
    --B  Content-Disposition: form-data; name="file1"; filename="file1"                    bytes of the file
    --B--

Names of parts are ours, and those of files never leave this machine. Fed and read by `client`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from h3runtime.client.errors import ClientError
from h3runtime.client.wire import Body

CHUNK = 256 * 1024
"""Bytes held at once."""


def json_body(request: Mapping[str, Any]) -> Body:
    data = json.dumps(request).encode()
    return Body("application/json", len(data), [data])


def body_of(request: Mapping[str, Any], uploads: Mapping[str, Path]) -> Body:
    """JSON alone where there is nothing to upload. `OSError` for a file that can't be read."""
    if not uploads:
        return json_body(request)
    boundary = secrets.token_hex(16)
    parts: list[tuple[bytes, Path | bytes, int]] = [_request_part(boundary, request)]
    parts += [_file_part(boundary, name, path) for name, path in uploads.items()]
    end = f"--{boundary}--\r\n".encode()
    length = sum(len(head) + size + 2 for head, _, size in parts) + len(end)
    return Body(f"multipart/form-data; boundary={boundary}", length, _chunks(parts, end))


def _request_part(boundary: str, request: Mapping[str, Any]) -> tuple[bytes, bytes, int]:
    data = json.dumps(request).encode()
    head = 'Content-Disposition: form-data; name="request"\r\nContent-Type: application/json'
    return f"--{boundary}\r\n{head}\r\n\r\n".encode(), data, len(data)


def _file_part(boundary: str, name: str, path: Path) -> tuple[bytes, Path, int]:
    head = f'Content-Disposition: form-data; name="{name}"; filename="{name}"\r\nContent-Type: application/octet-stream'
    with path.open("rb"):  # what can't be read is told before anything is sent
        return f"--{boundary}\r\n{head}\r\n\r\n".encode(), path, path.stat().st_size


def _chunks(parts: list[tuple[bytes, Path | bytes, int]], end: bytes) -> Iterator[bytes]:
    for head, content, size in parts:
        yield head
        if isinstance(content, bytes):
            yield content
        else:
            yield from _file_chunks(content, size)
        yield b"\r\n"
    yield end


def _file_chunks(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
    if left:
        raise ClientError(f"{path.name} became shorter while it was sent")
