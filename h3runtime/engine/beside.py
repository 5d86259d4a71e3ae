"""Sound beside pictures: the audio decoder runs while the first video chunk is decoded.

    host     enqueue chunk 0 | enqueue the sound | its checks, loudness, WAV | ffmpeg starts | chunk 1 ..
    stream   chunk 0 ---------------------------------------------------------------> chunk 1 ..
    own         `-> sound (small kernels, between those of the pictures) -> host

The sound must be whole before ffmpeg starts, but not before pictures are made: all of it hides behind the first chunk.
On CUDA it has a stream of its own, and nothing on the way to the first chunk may wait for the device. On a CPU chunks
are decoded in a thread, with as many numeric threads as the sound, on cores that have nothing to do until ffmpeg starts
and little afterwards; two at most are there, made or being made, that nobody is done with. Where there are too few
cores for both, one comes after the other. Every number is the same each way. Fed and read by `clip`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

from h3runtime.media.worker import Worker
from h3runtime.observe.cores import usable_cores

Item = TypeVar("Item")


class Beside:
    """A context, of one device. `stream` waits for what had been enqueued when this was made, and for nothing later;
    nothing runs on when it is left."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.in_thread = not self.on_device and 2 * torch.get_num_threads() <= usable_cores()
        self._stream: Any = None
        self._thread: _Ahead[Any] | None = None
        self._left = threading.Event()
        if self.on_device:
            # Above the pictures: its kernels are small, and somebody waits for them.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.end()

    def stream(self) -> AbstractContextManager[Any]:
        """Inside, work is enqueued beside that of the current stream. Copies to the host wait for it alone."""
        return torch.cuda.stream(self._stream) if self.on_device else nullcontext()

    @property
    def left(self) -> bool:
        """Nobody waits any more for what is made in a thread."""
        return self._left.is_set()

    def begun(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; the first one is enqueued now, or each is made in a thread, the first one from now on."""
        if self.on_device:
            return chain([next(items)], items)
        if not self.in_thread:
            return items
        self._thread = _Ahead(items)
        return self._thread.items()


class _Ahead(Generic[Item]):
    """Items made in a thread, one ahead of whoever takes them; what it raises is raised there."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items, self._numeric_threads = items, torch.get_num_threads()
        self._wanted = threading.Semaphore(2)
        # Each of one item; of none behind the last one.
        self._made: queue.SimpleQueue[list[Item] | BaseException] = queue.SimpleQueue()
        self._ended = False
        self._worker = Worker(self._make)
        self._worker.start()

    def items(self) -> Iterator[Item]:
        while made := self._made.get():
            if isinstance(made, BaseException):
                raise made
            yield made.pop()
            self._wanted.release()

    def end(self) -> None:
        """Make no more, and wait for the one that is being made."""
        self._ended = True
        self._wanted.release()
        self._worker.join()

    def _make(self) -> None:
        # A thread begins with as many numeric threads as the process would, whatever this one was given.
        torch.set_num_threads(self._numeric_threads)
        try:
            while self._wanted.acquire() and not self._ended:
                self._made.put(list(islice(self._items, 1)))
        except BaseException as error:
            self._made.put(error)
