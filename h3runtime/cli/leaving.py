"""Ctrl-C, SIGTERM and SIGHUP while modules load: the process ends there and then.

Python turns Ctrl-C into an exception wherever the program is. In the middle of an import that is no way out: a C or
Rust module that is half there makes another error of it, prints a panic, or drops it and goes on as if nobody had
asked. So nothing is thrown. `Leaving` is a handler that says `interrupted` and ends the process with 128 + the signal,
which asks for nothing to be left behind by then, or for a `clean` that sees to it.

`__main__` holds it from its first line on, `Stopping` hands over to it where a command imports its heavy half. Imports
next to nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], Any]


def take_signals(handler: Handler) -> dict[int, Any]:
    """What handled them before. Those that whoever started the process has it ignore stay ignored: SIGHUP under
    `nohup`, SIGINT in the background of a script."""
    taken = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    return {number: signal.signal(number, handler) for number in taken}


class Leaving:
    """A handler of signals that never returns to where the program was. told: somebody has said it already."""

    def __init__(self, clean: Callable[[], object] = lambda: None) -> None:
        self._clean = clean
        self._leaves = self.told = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self._leaves:
            # One on top of the other: the one below is about to end the process.
            return
        self._leaves = True
        try:
            self._clean()
            if not self.told:
                _tell()
        finally:
            os._exit(128 + number)


def _tell() -> None:
    """Past Python's own stream, which may be in the middle of a line."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
