"""`data:` URLs out of a JSON request, to bytes. What the bytes are is for `pictures` and `probe` to find out.

    data:image/png;base64,iVBORw0KGgo...

Line breaks and spaces in the base64 are dropped, percent escapes are undone, missing padding is allowed, as browsers do
(WHATWG data: URLs and forgiving base64). Only base64 is taken: the plain form can't carry a picture.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from h3runtime.errors import BadMedia, bad_media

LEGAL = "data:<type>;base64,<base64 text>"
HEAD_CHARACTERS = 256
"""Longest part before the comma that is looked at."""
WHITE_SPACE = b"\t\n\f\r "
BLOCK = 1 << 18
"""Characters at a time, a multiple of 4. No other thread runs while a block is decoded, and health must answer."""


@dataclass(frozen=True, slots=True)
class DataUrl:
    """media_type: as the client wrote it, lower case, without parameters; may be empty. Don't trust it."""

    media_type: str
    data: bytes


def parse_data_url(text: str, field: str, max_bytes: int) -> DataUrl:
    """`BadMedia` naming `field` unless it is a base64 data URL of 1..`max_bytes` bytes; the size is judged first."""
    media_type, comma = _head(text, field)
    # 4 characters carry 3 bytes, at most 12 if all are percent escapes; before that, nothing is worth decoding.
    if len(text) - comma > max_bytes * 4 + 1024:
        raise _too_large(field, max_bytes)
    data = _decode(text[comma + 1 :], field)
    if len(data) > max_bytes:
        raise _too_large(field, max_bytes)
    if not data:
        raise bad_media(field, "it is empty", LEGAL)
    return DataUrl(media_type, data)


def _head(text: str, field: str) -> tuple[str, int]:
    """The media type and where the comma is."""
    start = text[:HEAD_CHARACTERS]
    comma = start.find(",")
    if start[:5].lower() != "data:" or comma < 0:
        raise bad_media(field, "it is not a data URL", LEGAL)
    media_type, *parameters = (part.strip().lower() for part in start[5:comma].split(";"))
    if not parameters or parameters[-1] != "base64":
        raise bad_media(field, "it is not base64", LEGAL)
    return media_type, comma


def _decode(body: str, field: str) -> bytes:
    try:
        packed = _packed(unquote_to_bytes(body) if "%" in body else body.encode("ascii"))
        last = max(0, len(packed) - 1) // BLOCK * BLOCK
        blocks = [_block(packed[start : start + BLOCK]) for start in range(0, last, BLOCK)]
        return b"".join([*blocks, base64.b64decode(packed[last:] + b"=" * (-len(packed) % 4), validate=True)])
    except (binascii.Error, UnicodeEncodeError) as error:
        raise bad_media(field, "its base64 is broken", LEGAL) from error


def _packed(text: bytes) -> bytes:
    return b"".join(text[start : start + BLOCK].translate(None, WHITE_SPACE) for start in range(0, len(text), BLOCK))


def _block(text: bytes) -> bytes:
    """One of the blocks before the last: no padding in there."""
    if b"=" in text:
        raise binascii.Error("data after the padding")
    return base64.b64decode(text, validate=True)


def _too_large(field: str, max_bytes: int) -> BadMedia:
    return bad_media(field, "it is too large", f"at most {max_bytes} bytes")
