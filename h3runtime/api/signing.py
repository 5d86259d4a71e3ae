"""The signature of a callback, and the secret it is made with. Keeps nothing, sends nothing. `callbacks` asks."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from h3runtime.errors import Offence, SettingsError

MAX_SECRET_BYTES = 4096


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """What `X-H3-Signature` says: HMAC-SHA-256 of timestamp, a dot and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def secret_of(file: Path | None) -> bytes:
    """The file's bytes without line breaks at their end, which editors add; empty without a file. `SettingsError`."""
    if file is None:
        return b""
    try:
        with file.open("rb") as opened:
            secret = opened.read(MAX_SECRET_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise _broken(file, f"it can't be read: {error.strerror or error}") from error
    if not 0 < len(secret) <= MAX_SECRET_BYTES:
        raise _broken(file, "it is empty" if not secret else f"it is larger than {MAX_SECRET_BYTES} bytes")
    return secret


def _broken(file: Path, why: str) -> SettingsError:
    legal = f"a file of 1 to {MAX_SECRET_BYTES} bytes"
    return SettingsError(f"H3_CALLBACK_SECRET_FILE: {file}: {why}", [Offence("H3_CALLBACK_SECRET_FILE", why, legal)])
