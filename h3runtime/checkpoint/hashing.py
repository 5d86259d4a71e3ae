"""SHA-256 of checkpoint files, remembered between starts.

A hash is kept under the file's path, size, modification time and inode, so a file that was replaced or touched is
hashed again. The memory is one small JSON file in the user's cache; losing or spoiling it costs time, never a wrong
answer.
Fed by `engine` and `inspect` with the cache folder from the settings.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from h3runtime.checkpoint.file import checkpoint_error
from h3runtime.checkpoint.header import FILE
from h3runtime.errors import Offence

CHUNK_BYTES = 8 << 20
CACHE_NAME = "sha256.json"


def sha256_of(path: Path, cache_dir: Path | None = None) -> str:
    """Hex digest of the file at `path`, from `cache_dir` if the file is unchanged. CheckpointError if unreadable."""
    try:
        key = _key(path)
        known = _remembered(cache_dir).get(key) if cache_dir is not None else None
        digest = known or _hash(path)
        # A file that changed while it was read has no digest worth remembering.
        if known is None and cache_dir is not None and _key(path) == key:
            _remember(cache_dir, key, digest)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "input/output error"
        raise checkpoint_error(path, [Offence(FILE, f"can't be hashed: {reason}")]) from None
    return digest


def _key(path: Path) -> str:
    found = path.stat()
    return json.dumps([str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ino])


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _remembered(cache_dir: Path) -> dict[str, str]:
    try:
        table = json.loads((cache_dir / CACHE_NAME).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return {k: v for k, v in table.items() if isinstance(v, str) and len(v) == 64} if isinstance(table, dict) else {}


def _remember(cache_dir: Path, key: str, digest: str) -> None:
    """Best effort: a cache that can't be written is no reason to fail."""
    with suppress(OSError):
        cache_dir.mkdir(parents=True, exist_ok=True)
        table = {**_remembered(cache_dir), key: digest}
        descriptor, temporary = tempfile.mkstemp(dir=cache_dir, prefix=f".{CACHE_NAME}.")
        with os.fdopen(descriptor, "w") as out:
            json.dump(table, out)
        Path(temporary).replace(cache_dir / CACHE_NAME)
