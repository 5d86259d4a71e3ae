"""Media read in a thread of their own, so that a stop is seen while a file is.

A clip whose wanted part lies an hour behind its beginning, a long sound or a huge picture are one call into FFmpeg or
Pillow each. Here the caller looks up ten times a second meanwhile; told to stop it leaves, and the reader ends at its
next item, its file closed. One item is read ahead, or as many as whoever takes them works on at once: a clip is
decoded while its frames before are encoded. Fed by `media_encoder`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from h3runtime.media.worker import Worker

POLL = 0.1
"""Seconds between looks at whether to stop."""
Item = TypeVar("Item")


def read(make: Callable[[], Item], poll: Callable[[], None]) -> Item:
    """What `make` returns or raises; `poll` is called meanwhile and may raise."""
    (made,) = read_each(lambda: iter((make(),)), poll)
    return made


def read_each(
    make: Callable[[], Iterable[Item]], poll: Callable[[], None], ahead: int = 1
) -> Generator[Item, None, None]:
    """Every item of what `make` returns, in order, and whatever it raises. ahead: how many wait at most."""
    reader = _Reader(make, ahead)
    thread = Worker(reader.work)
    thread.start()
    try:
        while (item := reader.next(poll)) is not None:
            yield item.value
    finally:
        reader.abandoned.set()


class _Item(Generic[Item]):
    __slots__ = ("value",)

    def __init__(self, value: Item) -> None:
        self.value = value


class _Reader(Generic[Item]):
    """abandoned: nobody waits any more."""

    def __init__(self, make: Callable[[], Iterable[Item]], ahead: int) -> None:
        self._make = make
        self._queue: queue.Queue[_Item[Item] | BaseException | None] = queue.Queue(ahead)
        self.abandoned = threading.Event()

    def work(self) -> None:
        try:
            for value in self._make():
                self._hand_over(_Item(value))
                if self.abandoned.is_set():
                    return
            self._hand_over(None)
        except BaseException as error:
            self._hand_over(error)

    def next(self, poll: Callable[[], None]) -> _Item[Item] | None:
        while True:
            poll()
            with suppress(queue.Empty):
                found = self._queue.get(timeout=POLL)
                if isinstance(found, BaseException):
                    raise found
                return found

    def _hand_over(self, item: _Item[Item] | BaseException | None) -> None:
        while not self.abandoned.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=POLL)
                return
