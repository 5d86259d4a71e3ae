"""A thread that starts or says that it can't.

`threading.Thread.start` waits for the new thread's word for ever. Where memory is full the thread may end before it can
give it: the job would hang until its deadline, and the engine with it. So a job's threads begin by `_thread` itself,
and their first word is waited for so long and no longer. Used by `mux` and `process`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

BIRTH_SECONDS = 10.0
"""A thread that hasn't begun by then never will."""


class Worker:
    """One call in a thread that the process doesn't wait for at its end. `target` raises nothing."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> None:
        self._target, self._args = target, args
        self._began, self._ended, self._given_up = threading.Event(), threading.Event(), threading.Event()

    def start(self) -> None:
        """MemoryError if it can't begin; there is nothing to join then."""
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            raise MemoryError("no thread can be started") from error
        if not self._began.wait(BIRTH_SECONDS):
            self._given_up.set()
            raise MemoryError("a thread ended before it began")

    def join(self, seconds: float | None = None) -> None:
        self._ended.wait(seconds)

    def is_alive(self) -> bool:
        return self._began.is_set() and not self._ended.is_set()

    def _run(self) -> None:
        self._began.set()
        try:
            if not self._given_up.is_set():
                self._target(*self._args)
        finally:
            self._ended.set()
