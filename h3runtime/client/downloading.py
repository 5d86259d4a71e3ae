"""A clip onto this disk: resumed where it broke off, checked against the job's SHA-256, renamed into place.

    GET /jobs/ID/content?variant=I   Range: bytes=N-   If-Range: "SHA-256"

What has come lies beside its place under a dotted name that holds the hash, so that the same command goes on with it
later, and another clip never does. Fed by `client`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from h3runtime.client.errors import BrokenDownload, Refused, Unreachable
from h3runtime.client.wire import Answer, Wire
from h3runtime.errors import Offence, OutputExists

BLOCK = 256 * 1024
TRIES = 5
"""Connections that may break one after the other without a byte."""
PAUSE = 0.5

OnBytes = Callable[[int, int], None]
"""Called with the bytes that are there and those of the whole."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the server announced. path: where to ask for it."""

    path: str
    sha256: str
    bytes: int


def download(wire: Wire, wanted: Wanted, target: Path, overwrite: bool, on_bytes: OnBytes | None) -> None:
    """`OutputExists`, `BrokenDownload`, `Refused`, `Unreachable`, `OSError`; the target is whole or not there."""
    _refuse_taken(target, overwrite)
    part = target.with_name(f".{target.name[:100]}.{wanted.sha256[:16]}.part")
    with part.open("ab") as file:
        _fill(wire, wanted, file, on_bytes)
        file.flush()
        os.fsync(file.fileno())
    if _sha256_of(part) != wanted.sha256:
        part.unlink()
        raise BrokenDownload(f"what came for {target.name} is not what the server made; its SHA-256 is another one")
    _place(part, target, overwrite)


def _fill(wire: Wire, wanted: Wanted, file: IO[bytes], on_bytes: OnBytes | None) -> None:
    """Append until it is whole."""
    tries = 0
    while (there := os.fstat(file.fileno()).st_size) != wanted.bytes:
        if there > wanted.bytes:
            file.truncate(there := 0)
        try:
            _append(wire, wanted, file, there, on_bytes)
        except Unreachable:
            file.flush()
            tries = 0 if os.fstat(file.fileno()).st_size > there else tries + 1
            if tries >= TRIES:
                raise
            time.sleep(PAUSE * tries)
    if on_bytes is not None:
        on_bytes(wanted.bytes, wanted.bytes)


def _append(wire: Wire, wanted: Wanted, file: IO[bytes], there: int, on_bytes: OnBytes | None) -> None:
    headers = {"Range": f"bytes={there}-", "If-Range": f'"{wanted.sha256}"'} if there else {}
    try:
        with wire.answer("GET", wanted.path, headers=headers) as answer:
            _take(answer, wanted, file, there, on_bytes)
    except Refused as error:
        if error.status != 416 or not there:
            raise
        file.truncate(0)


def _take(answer: Answer, wanted: Wanted, file: IO[bytes], there: int, on_bytes: OnBytes | None) -> None:
    if there and answer.status != 206:
        file.truncate(there := 0)
    for block in answer.blocks(BLOCK):
        file.write(block)
        there += len(block)
        if there > wanted.bytes:
            raise BrokenDownload("the server sends more than it announced")
        if on_bytes is not None:
            on_bytes(there, wanted.bytes)
    file.flush()
    if there < wanted.bytes:
        raise Unreachable(f"{answer.headers.get('server', 'the server')} stopped in the middle of the clip")


def _place(part: Path, target: Path, overwrite: bool) -> None:
    if overwrite:
        part.replace(target)
        return
    try:
        target.hardlink_to(part)  # unlike a rename, never onto a file that came meanwhile
    except FileExistsError:
        raise _taken(target) from None
    except OSError:  # a file system without links
        _refuse_taken(target, overwrite)
        part.replace(target)
        return
    part.unlink()


def _refuse_taken(target: Path, overwrite: bool) -> None:
    if target.exists() and not (overwrite and target.is_file()):
        raise _taken(target)


def _taken(target: Path) -> OutputExists:
    return OutputExists(f"output: {target} exists", [Offence("output", "exists", "another name, or --overwrite")])


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wanted_of(output: dict[str, Any], job_id: str, variant: int) -> Wanted:
    """output: of the job's `outputs`. `BrokenDownload` if the job has no such clip (yet)."""
    if output.get("sha256") is None or output.get("bytes") is None:
        raise BrokenDownload(f"job {job_id} has no clip {variant}")
    return Wanted(f"/jobs/{job_id}/content?variant={variant}", str(output["sha256"]), int(output["bytes"]))
