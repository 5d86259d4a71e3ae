"""Who wants to be told of a job, by the job's id: callables that are rung from whichever thread has news.

Used by `table`. A bell that fails is its owner's trouble; the thread that rings carries on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

Ring = Callable[[], None]

log = structlog.get_logger("h3runtime.jobs")


class Bells:
    """Safe to use from any thread; nothing is rung while the lock is held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings: dict[str, list[Ring]] = {}

    def add(self, job_id: str, ring: Ring) -> Ring:
        """Returns an undo, of no effect once it was rung for the last time."""
        with self._lock:
            self._rings.setdefault(job_id, []).append(ring)
        return lambda: self._drop(job_id, ring)

    def ring(self, job_id: str, *, once: bool = False) -> None:
        """once: they are not rung again."""
        with self._lock:
            rings = self._rings.pop(job_id, []) if once else list(self._rings.get(job_id, ()))
        for ring in rings:
            _ring(ring)

    def ring_all(self) -> None:
        with self._lock:
            rings = [ring for rings in self._rings.values() for ring in rings]
        for ring in rings:
            _ring(ring)

    def _drop(self, job_id: str, ring: Ring) -> None:
        with self._lock:
            rings = self._rings.get(job_id, [])
            if ring in rings:
                rings.remove(ring)
            if not rings:
                self._rings.pop(job_id, None)


def _ring(ring: Ring) -> None:
    try:
        ring()
    except Exception as error:
        log.error("bell_failed", exc_info=error)
