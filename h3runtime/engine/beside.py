"""Sound beside pictures: on CUDA the audio decoder runs on a stream of its own while the first video chunk is decoded.

    host     enqueue chunk 0 | enqueue the sound | its checks, loudness, WAV | ffmpeg starts | chunk 1 ..
    stream   chunk 0 ---------------------------------------------------------------> chunk 1 ..
    own         `-> sound (small kernels, between those of the pictures) -> host

The sound must be whole before ffmpeg starts, but not before pictures are made: all of it hides behind the first chunk.
Nothing on the way to the first chunk may wait for the device. A CPU has no use for it: both would share its cores. Fed
and read by `clip`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")


class Beside:
    """Of one device. `stream` waits for what had been enqueued when this was made, and for nothing later."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self._stream: Any = None
        if self.on_device:
            # Above the pictures: its kernels are small, and somebody waits for them.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def stream(self) -> AbstractContextManager[Any]:
        """Inside, work is enqueued beside that of the current stream. Copies to the host wait for it alone."""
        return torch.cuda.stream(self._stream) if self.on_device else nullcontext()

    def begun(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; on CUDA the first one is enqueued now."""
        return chain([next(items)], items) if self.on_device else items
