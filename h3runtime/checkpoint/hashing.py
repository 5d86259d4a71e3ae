"""SHA-256 of checkpoint files, remembered between starts.

A hash is kept under the file's path, size, modification time and inode, so a file that was replaced or touched is
hashed again. The memory is one small JSON file in the user's cache; losing or spoiling it costs time, never a wrong
answer.
Fed by `verify` with what was hashed while loading, and by `inspect`, which hashes a file by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.tensor_file import Identity, advise, checkpoint_error, reason
from h3runtime.errors import Offence

CHUNK_BYTES = 8 << 20
CACHE_NAME = "sha256.json"
HEX = re.compile(r"[0-9a-f]{64}")
"""A SHA-256 as everybody here writes it."""
DOUBT = "?"
"""Before a digest that the very file was once found not to have any more."""


def sha256_of(path: Path, cache_dir: Path | None = None, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """Hex digest of the file at `path`, from `cache_dir` if the file is unchanged. CheckpointError if unreadable.

    on_bytes: told now and then how many bytes of the file have been read.
    """
    try:
        identity = identity_of(path)
        known = remembered(identity, cache_dir)
        digest = known or _hash(path, on_bytes)
        # A file that changed while it was read has no digest worth remembering.
        if known is None and identity_of(path) == identity:
            remember(identity, digest, cache_dir)
    except OSError as error:
        raise checkpoint_error(path, [Offence(FILE, f"can't be hashed: {reason(error)}")]) from None
    return digest


def sha256_of_parts(digests: Mapping[str, str]) -> str:
    """One digest for several files, given theirs by name: of the lines `name:digest` in the order of names. One file
    alone keeps its own."""
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{name}:{digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def remembered(identity: Identity, cache_dir: Path | None) -> str | None:
    """The digest of the very file, if it was hashed before and not doubted. `cache_dir` None: there is no memory."""
    digest = _kept(identity, cache_dir)
    return None if digest is None or digest.startswith(DOUBT) else digest


def first_found(identity: Identity, cache_dir: Path | None) -> str | None:
    """The digest that the very file had when it was first hashed, doubted or not."""
    digest = _kept(identity, cache_dir)
    return None if digest is None else digest.removeprefix(DOUBT)


def doubt(identity: Identity, digest: str, cache_dir: Path | None) -> None:
    """The file has `digest` no more: keep it to be compared with, and never believe it unseen again."""
    remember(identity, DOUBT + digest, cache_dir)


def remember(identity: Identity, digest: str, cache_dir: Path | None) -> None:
    """Best effort: a memory that can't be written is no reason to fail."""
    if cache_dir is None:
        return
    with suppress(OSError):
        cache_dir.mkdir(parents=True, exist_ok=True)
        kept = {key: other for key, other in _table(cache_dir).items() if _is_known(other)}
        table = {**kept, _key(identity): digest}
        descriptor, temporary = tempfile.mkstemp(dir=cache_dir, prefix=f".{CACHE_NAME}.")
        with os.fdopen(descriptor, "w") as out:
            json.dump(table, out)
        Path(temporary).replace(cache_dir / CACHE_NAME)


def identity_of(path: Path) -> Identity:
    """OSError if there is no such file."""
    found = path.stat()
    return Identity(str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ino)


def _key(identity: Identity) -> str:
    return json.dumps([identity.path, identity.size, identity.mtime_ns, identity.inode])


def _hash(path: Path, on_bytes: Callable[[int], None]) -> str:
    """Its pages don't stay in the cache, where they would push out what others need."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        advise(file.fileno(), "SEQUENTIAL")
        done = 0
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            done += count
            on_bytes(done)
            advise(file.fileno(), "DONTNEED", 0, done)
        advise(file.fileno(), "DONTNEED")
    return digest.hexdigest()


def _kept(identity: Identity, cache_dir: Path | None) -> str | None:
    digest = None if cache_dir is None else _table(cache_dir).get(_key(identity))
    return digest if _is_known(digest) else None


def _table(cache_dir: Path) -> dict[str, Any]:
    """As it is on disk: whoever reads one of thousands looks at that one."""
    try:
        table = json.loads((cache_dir / CACHE_NAME).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _is_known(digest: Any) -> TypeGuard[str]:
    return isinstance(digest, str) and HEX.fullmatch(digest.removeprefix(DOUBT)) is not None
