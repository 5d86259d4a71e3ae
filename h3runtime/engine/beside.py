"""Sound beside pictures: the audio decoder runs while the first video chunk is decoded.

    host     enqueue chunk 0 | enqueue the sound | its checks, loudness, WAV | ffmpeg starts | chunk 1 ..
    stream   chunk 0 ---------------------------------------------------------------> chunk 1 ..
    own         `-> sound (small kernels, between those of the pictures) -> host

The sound must be whole before ffmpeg starts, but not before pictures are made: all of it hides behind the first chunk.
On CUDA it has a stream of its own, and nothing on the way to the first chunk may wait for the device. On a CPU the
first chunk is decoded in a thread of its own, with as many numeric threads as the sound, on cores that are left to
ffmpeg, which has nothing to do yet; where there are too few for both, one comes after the other. Every number is the
same each way. Fed and read by `clip`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

import torch

from h3runtime.media.worker import Worker
from h3runtime.observe.cores import usable_cores

Item = TypeVar("Item")


class Beside:
    """A context, of one device. `stream` waits for what had been enqueued when this was made, and for nothing later;
    nothing runs on when it is left."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self._in_thread = not self.on_device and 2 * torch.get_num_threads() <= usable_cores()
        self._stream: Any = None
        self._ahead: _Ahead[Any] | None = None
        if self.on_device:
            # Above the pictures: its kernels are small, and somebody waits for them.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ahead is not None:
            self._ahead.wait()

    def stream(self) -> AbstractContextManager[Any]:
        """Inside, work is enqueued beside that of the current stream. Copies to the host wait for it alone."""
        return torch.cuda.stream(self._stream) if self.on_device else nullcontext()

    @property
    def ahead(self) -> int:
        """How many items `begun` begins."""
        return int(self.on_device or self._in_thread)

    def begun(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; the first one is enqueued now, or made in a thread from now on."""
        if self.on_device:
            return chain([next(items)], items)
        if not self._in_thread:
            return items
        self._ahead = _Ahead(items)
        return self._ahead.items()


class _Ahead(Generic[Item]):
    """The first of some items, made in a thread. What it raises is raised by whoever asks for it."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items, self._threads = items, torch.get_num_threads()
        self._first: Callable[[], Item] | None = None
        self._worker = Worker(self._make)
        self._worker.start()

    def items(self) -> Iterator[Item]:
        self.wait()
        assert self._first is not None
        first, self._first = self._first, None
        # No variable holds what it gives while the next ones are made.
        yield first()
        del first
        yield from self._items

    def wait(self) -> None:
        """Until it is made. The stop of a job ends it as it ends any other work."""
        self._worker.join()

    def _make(self) -> None:
        # A thread begins with as many numeric threads as the process would, whatever this one was given.
        torch.set_num_threads(self._threads)
        try:
            made = [next(self._items)]
            self._first = made.pop
        except BaseException as error:
            self._first = partial(_raise, error)


def _raise(error: BaseException) -> NoReturn:
    raise error
