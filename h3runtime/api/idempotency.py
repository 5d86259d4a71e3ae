"""One job for one key: what makes two requests the same, and whose turn it is while one of them is admitted.

The `Service` asks; which job has a key is the table's to know. Nothing here outlives a request but the job's own row.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from h3runtime.api.body import Delivery
from h3runtime.api.caller import KEY_HEADER
from h3runtime.errors import IdempotencyMismatch, Offence
from h3runtime.jobs.table import Job


def fingerprint_of(delivery: Delivery) -> str:
    """SHA-256 of the request, whatever the order of its keys and its white space, and of each upload. Reads them."""
    request = json.dumps(delivery.request, sort_keys=True, separators=(",", ":"))
    parts = {name: _hash_of(path) for name, path in delivery.files.items()}
    told = json.dumps([request, parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(told.encode()).hexdigest()


def same(job: Job, fingerprint: str) -> Job:
    """The job that has the key. `IdempotencyMismatch` if another request made it."""
    if job.order.fingerprint != fingerprint:
        told = "this key was sent with another request"
        raise IdempotencyMismatch(
            f"{KEY_HEADER}: {told}", [Offence(KEY_HEADER, told, "a new key, or the same request")]
        )
    return job


class Turns:
    """One at a time for each key; used from one loop. A key that nobody holds or waits for takes no room."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def take(self, owner: str, key: str) -> AsyncIterator[None]:
        """Nobody waits without a key."""
        if not key:
            yield
            return
        place = owner, key
        lock, users = self._locks.get(place, (asyncio.Lock(), 0))
        self._locks[place] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(place)
            if users > 1:
                self._locks[place] = lock, users - 1


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
