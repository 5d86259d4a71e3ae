"""Ctrl-C, SIGTERM and SIGHUP for commands that compute: the first one asks, the next one insists.

While a clip is being made, the first signal is only noted and the engine stops at its next look, as it does for a job
that is cancelled, so that no library is cut off in the middle of a call. While modules are imported a signal ends the
process at once (`leaving`). Anywhere else, and from the second one on, a signal raises KeyboardInterrupt where the
program is. Either way the scratch folder and the encoder go, and the exit code tells the signal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from h3runtime.cli.leaving import Leaving, take_signals
from h3runtime.observe.importing import uncollected


class Stopping:
    """A context that owns the signals. Called, it says whether to stop: what the engine takes as `should_stop`.

    Leaves with `KeyboardInterrupt(number)` if a signal ended what was inside, whatever a library made of it.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._gentle = False
        self._leaving: Leaving | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._asked is not None

    @contextmanager
    def gently(self) -> Iterator[None]:
        """Inside, somebody asks `self()` often enough."""
        self._gentle = True
        self._heed()
        try:
            yield
        finally:
            self._gentle = False

    @contextmanager
    def loading(self, clean: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Inside, modules are imported and nothing is begun that would have to be ended. clean: what a signal there
        removes of before, ahead of ending the process."""
        self._leaving = Leaving(clean)
        self._heed()
        try:
            with uncollected():
                yield
        finally:
            self._leaving = None

    def __enter__(self) -> Self:
        self._before = take_signals(self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._asked is not None and error is not None:
            raise KeyboardInterrupt(self._asked) from None

    def _heed(self) -> None:
        """A signal whose exception was thrown where nobody could pass it on."""
        if self._asked is not None:
            raise KeyboardInterrupt(self._asked)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._leaving is not None:
            self._leaving(number, frame)
            return
        insists = self._asked is not None
        self._asked = number
        if insists or not self._gentle:
            raise KeyboardInterrupt(number)
