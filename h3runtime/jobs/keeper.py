"""The thread that looks after jobs while nothing happens: writes what the store lacks, and sweeps.

Paced by the monotonic clock. What fails is logged and tried again at its next turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

TICK_SECONDS = 1.0
"""How often progress is written, and a store that was full or held is tried again."""

log = structlog.get_logger("h3runtime.jobs")


class Keeper:
    """Calls `tick` each second and `sweep` every `pause` seconds, in a thread of its own."""

    def __init__(self, sweep: Callable[[], object], tick: Callable[[], object], pause: float) -> None:
        self._sweep, self._tick, self._pause = sweep, tick, pause
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Of no effect the second time."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Waits for the turn it is at."""
        self._leaving.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            _guarded(self._tick)
            if time.monotonic() >= due:
                _guarded(self._sweep)
                due = time.monotonic() + self._pause
            if self._leaving.wait(min(TICK_SECONDS, self._pause)):
                return


def _guarded(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception as error:
        log.error("keeper_failed", exc_info=error)
