"""Estimates that requests wait for, while the supervisor's thread carries them over the pipe and back.

    a request's thread      ask ........................................ waits ... answer
    the supervisor's              unsent --> Weigh --> engine --> Weighed --> settle

Each question has a number; an engine that ends takes those it was told with it (`fail`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from itertools import count

from h3runtime.core import Estimate, GenerateSpec
from h3runtime.errors import H3Error, NotReady

IN_FLIGHT = 2
"""Questions that an engine has at once. It answers one after the other; and many would fill the pipe of one that has
frozen, which would hold up the very thread that is to notice it. The pipe holds 200 KB, a question has 60 at most."""


class Questions:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        self._open: dict[int, Future[Estimate]] = {}
        self._unsent: list[tuple[int, GenerateSpec]] = []
        self._carried: set[int] = set()

    def ask(self, spec: GenerateSpec, seconds: float, ring: Callable[[], None]) -> Estimate:
        """The answer to what somebody else carries. `NotReady` after `seconds`, or the error that came back."""
        answer: Future[Estimate] = Future()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = answer
            self._unsent.append((number, spec))
        ring()
        try:
            return answer.result(seconds)
        except TooLate:
            raise NotReady(f"the engine gave no estimate within {seconds:g} s; try again in a moment") from None
        finally:
            with self._lock:
                self._open.pop(number, None)
                self._unsent = [question for question in self._unsent if question[0] != number]

    def unsent(self) -> list[tuple[int, GenerateSpec]]:
        """Those to carry now; they count as carried, also when whoever asked has given up."""
        with self._lock:
            room = IN_FLIGHT - len(self._carried)
            found, self._unsent = self._unsent[:room], self._unsent[room:]
            self._carried.update(number for number, _ in found)
        return found

    def settle(self, number: int, answer: Estimate | H3Error) -> None:
        """Of no effect if nobody waits any more."""
        with self._lock:
            waiting = self._open.pop(number, None)
            self._carried.discard(number)
        if waiting is None:
            return
        if isinstance(answer, H3Error):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def fail(self, error: H3Error) -> None:
        """All of them: there is nobody to ask."""
        with self._lock:
            numbers, self._unsent = [*self._open], []
            self._carried.clear()
        for number in numbers:
            self.settle(number, error)
