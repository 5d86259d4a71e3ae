"""The end of a clip kept without loss, for a clip that continues it.

    decoded chunks --put--> queue of 4 chunks --a thread--> LosslessWriter --finish--> scratch --publish--> its name

Frames are kept as decoded, before the lossy encoder, in a thread of its own: FFV1 takes longer than the decoder of a
GPU does. The decoder waits for it only once it is four chunks behind, so for the tails that a server keeps never. The
sound is the decoded one before the loudness rule: that divides a loud sound by its deviation, and a chain in which each
clip is conditioned on a divided one would get quieter from clip to clip.

Fed by `clip` beside the encoder. The file appears after the clip has its name; a job that fails leaves nothing.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import TailRequest
from h3runtime.media.delivery import disk_error
from h3runtime.media.joining import sample_at
from h3runtime.media.lossless import LosslessWriter
from h3runtime.media.mux import ClipShape
from h3runtime.media.sound import trim
from h3runtime.media.worker import Worker

STAGE = "mux"
QUEUED_CHUNKS = 4
"""Of 17 frames: all of the 56 that a server keeps, 173 MB at 1344x768."""
POLL = 0.1
"""Seconds between looks at whether the other thread is still there."""


class Tail:
    """A context that takes every chunk of a clip with `put` and keeps the last frames; None as request keeps nothing.

    scratch:  an existing folder for the file while it is written.
    waveform: float32 [2, n] at 32 kHz of the whole clip, as decoded.
    poll:     called ten times a second while `put` and `finish` wait; may raise.

    Errors of the disk come as JobDiskFull and EncoderFailed from `put` and `finish`.
    """

    def __init__(
        self,
        request: TailRequest | None,
        scratch: Path,
        shape: ClipShape,
        waveform: NDArray[np.float32],
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        self._poll = poll
        self._request, self._staged, self._shape = request, scratch / "tail.mkv", shape
        self._skip = shape.frames if request is None else max(0, shape.frames - request.frames)
        self._waveform = trim(waveform, shape.frames)[:, sample_at(self._skip) :]
        self._queue: queue.Queue[NDArray[np.uint8] | None] = queue.Queue(QUEUED_CHUNKS)
        self._abandoned = threading.Event()
        self._failure: BaseException | None = None
        self._thread: Worker | None = None

    def __enter__(self) -> Self:
        if self._request is not None:
            self._thread = Worker(self._write)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandoned.set()
        if self._thread is not None:
            self._thread.join()
            self._staged.unlink(missing_ok=True)
        if self._request is not None:
            self._near(self._request).unlink(missing_ok=True)

    def put(self, chunk: NDArray[np.uint8]) -> None:
        """uint8 [n, H, W, 3], the clip's next frames; copied, so that the caller may reuse its buffer."""
        kept = chunk[min(self._skip, len(chunk)) :]
        self._skip -= len(chunk) - len(kept)
        if len(kept):
            self._hand_over(np.array(kept, order="C"))

    def finish(self) -> None:
        """All frames are there: wait until they are written. The file is whole, and without its name."""
        if self._thread is None:
            return
        self._hand_over(None)
        while self._thread.is_alive():
            self._poll()
            self._thread.join(POLL)
        self._raise_failure()

    def publish(self) -> None:
        """Give the file its name; for after the clip has got its own."""
        if self._request is not None:
            # Clips and tails may lie on two file systems; then this copies.
            shutil.move(self._staged, self._near(self._request))
            self._near(self._request).replace(self._request.path)

    @staticmethod
    def _near(request: TailRequest) -> Path:
        return request.path.with_name(f".{request.path.name}")

    def _hand_over(self, chunk: NDArray[np.uint8] | None) -> None:
        while True:
            self._raise_failure()
            self._poll()
            with suppress(queue.Full):
                return self._queue.put(chunk, timeout=POLL)

    def _raise_failure(self) -> None:
        if isinstance(self._failure, OSError):
            raise disk_error(self._failure, STAGE) from self._failure
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        try:
            writer = LosslessWriter(self._staged, self._shape.width, self._shape.height, self._waveform)
            try:
                while (chunk := self._next()) is not None:
                    self._write_chunk(writer, chunk)
                if not self._abandoned.is_set():
                    writer.finish()
            finally:
                writer.abandon()
        except BaseException as error:
            self._failure = error

    def _write_chunk(self, writer: LosslessWriter, chunk: NDArray[np.uint8]) -> None:
        """Frame by frame: whoever gives up waits for one, not for 17."""
        for index in range(len(chunk)):
            if self._abandoned.is_set():
                return
            writer.put(chunk[index : index + 1])

    def _next(self) -> NDArray[np.uint8] | None:
        while not self._abandoned.is_set():
            with suppress(queue.Empty):
                return self._queue.get(timeout=POLL)
        return None
