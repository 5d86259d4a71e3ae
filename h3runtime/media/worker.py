"""A thread that starts or says that it can't.

`threading.Thread.start` waits for the new thread's word. Where memory is full the thread may end before it can give it,
and the wait never does: the job would hang until its deadline, and the engine with it. Used for the threads of a job.
"""

from __future__ import annotations

import threading

BIRTH_SECONDS = 10.0
"""A thread that hasn't begun by then never will."""


class _Birth(threading.Event):
    """What `Thread.start` waits for, for so long."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(BIRTH_SECONDS if timeout is None else timeout)


class Worker(threading.Thread):
    """A daemon thread. `start` raises MemoryError if it can't begin; there is nothing to join then."""

    def start(self) -> None:
        self.daemon = True
        self._started = _Birth()
        try:
            super().start()
        except RuntimeError as error:
            raise MemoryError("no thread can be started") from error
        if not self._started.is_set():
            raise MemoryError("a thread ended before it began")
