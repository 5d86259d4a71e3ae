"""Names that one request at a time may use while it is admitted: keys of idempotency, by owner.

    with queue.reserve(owner, key):
        found = table.by_key(owner, key)     # whoever was first has been admitted by now, or refused
        ...admit...

The second of two waits, in its own thread, until the first is through; if that one was refused, it is its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from h3runtime.errors import Draining


class Reservations:
    """Safe to use from any thread. is_closed: whether the server takes no more; who waits then gets `Draining`."""

    def __init__(self, is_closed: Callable[[], bool]) -> None:
        self._is_closed = is_closed
        self._changed = threading.Condition()
        self._held: set[tuple[str, str]] = set()

    @contextmanager
    def hold(self, owner: str, key: str) -> Iterator[None]:
        """An empty key holds nothing."""
        if not key:
            yield
            return
        name = (owner, key)
        with self._changed:
            self._changed.wait_for(lambda: name not in self._held or self._is_closed())
            if name in self._held:
                raise Draining("the server is shutting down and takes no new jobs")
            self._held.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(name)
                self._changed.notify_all()

    def wake(self) -> None:
        """The server has closed."""
        with self._changed:
            self._changed.notify_all()
