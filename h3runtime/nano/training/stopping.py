"""Interrupts that end a training in good order: the first asks it to stop, the second ends it as ever.

Fed by the system's SIGINT and SIGTERM; read by the loop of `joint`.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """A context in which a signal sets `asked`. In a thread that isn't the main one signals are left alone."""

    def __init__(self) -> None:
        self.asked = False
        self._before = list[object]()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = [signal.signal(number, self._ask) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in zip(SIGNALS, self._before, strict=False):
            signal.signal(number, before)  # type: ignore[arg-type]

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            self.__exit__()
            signal.raise_signal(number)
        self.asked = True
