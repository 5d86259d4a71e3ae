"""A clip is written while it is being decoded: frames go in as chunks, a file with sound comes out under its name.

    decoder --put--> queue of 2 chunks --writer thread--> ffmpeg's stdin --> temporary file --finish--> the output

The engine (or `decode`) feeds it, `encode_command` says what ffmpeg is to do, `process` runs it, `probe` counts what
came out, `delivery` gives it its name. It converts no frames itself, but drops and repeats them where the clip is to
have another rate (`retiming`). The sound is complete before the first frame, as a float WAV of the delivered rate;
ffmpeg may have started by then.

Memory: the queue holds 2 chunks, the thread one more, whatever the length of the clip; `put` copies, so the caller may
reuse its buffer. Every way out, normal or not, ends ffmpeg and its whole process group and removes the temporary files;
the output's name is only ever given to a whole, synced, counted file.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import FPS, AudioCodec, EncodeSettings, VideoCodec
from h3runtime.errors import (
    BadMedia,
    EncoderFailed,
    JobCancelled,
)
from h3runtime.media.delivery import deliver, disk_error, refuse_existing
from h3runtime.media.encode_command import GATE, ClipShape, mux_command, temporary_name, video_encoder_of
from h3runtime.media.encoder_faults import STAGE, encoder_fault, is_chatter
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.probe import count_packets
from h3runtime.media.process import POLL, Child
from h3runtime.media.retiming import picture_count, rate_of, times_shown
from h3runtime.media.sound import at_rate, require_finite, samples_for, trim, wav_bytes
from h3runtime.media.worker import Worker

__all__ = ["ClipShape", "ClipWriter", "Limits", "WrittenClip"]

QUEUED_CHUNKS = 2
SIGN_SECONDS = 1.0
"""Between two signs of life of an encoder that finishes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. stall: without progress (service contract, small print). finish: from the last frame to the whole file,
    a longest 1344x768 clip on one slow core several times over."""

    stall: float = 60.0
    finish: float = 600.0


@dataclass(frozen=True, slots=True)
class WrittenClip:
    """The file under its name. frames: those that were put in; `pictures` are in the file, at its own rate. samples: of
    the sound, a channel, at its delivered rate, that the encoder was handed, 0 without sound."""

    output: Path
    bytes: int
    sha256: str
    frames: int
    pictures: int
    samples: int
    video_codec: VideoCodec
    video_encoder: str
    audio_codec: AudioCodec | None


class ClipWriter:
    """A context that takes chunks with `put` and ends with `finish`; left without `finish`, it leaves nothing.

    tool:        from `find_ffmpeg`.
    output:      the final name; its folder exists and is on the file system of `scratch`.
    scratch:     an existing folder for the temporary files.
    sound:       float32 [C, n], C 1 or 2, at 32 kHz, its loudness settled, or None; it is trimmed here, never padded,
                 and brought to the delivered rate.
    awaits_sound: it comes with `hear` instead, before the first frame, while ffmpeg starts.
    should_stop: asked from `put` and `finish`, at least ten times a second; then `JobCancelled`.
    on_line:     gets ffmpeg's messages of `loglevel` and above, from a thread.

    Errors: `OutputExists` and `InvalidRequest` before any work; `NumericalError` for a sample that isn't finite;
    `EncoderFailed`, `JobTimeout`, `JobDiskFull`, `JobCancelled` from `put` and `finish`. `ValueError` is a bug of the
    caller: a chunk of another shape or type, more or fewer frames than promised.
    """

    def __init__(
        self,
        tool: FFmpeg,
        output: Path,
        scratch: Path,
        shape: ClipShape,
        sound: NDArray[np.float32] | None,
        *,
        awaits_sound: bool = False,
        encode: EncodeSettings = EncodeSettings(),  # noqa: B008  # frozen
        overwrite: bool = False,
        limits: Limits = Limits(),
        should_stop: Callable[[], bool] = lambda: False,
        loglevel: str = "error",
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._tool, self._output, self._scratch, self._shape = tool, output, scratch, shape
        self._sound = None if sound is None else _judged(sound, shape.frames, encode.sample_rate)
        self._awaits_sound, self._heard = awaits_sound, threading.Event()
        self._rate = rate_of(encode.fps)
        self._encode, self._overwrite, self._limits = encode, overwrite, limits
        self._should_stop, self._loglevel, self._on_line = should_stop, loglevel, on_line
        self._queue: queue.Queue[NDArray[np.uint8] | None] = queue.Queue(QUEUED_CHUNKS)
        self._abandoned = threading.Event()
        self._failure: BaseException | None = None
        self._taken = 0
        # Of a stop while frames are still put: whoever makes them knows.
        self._stage: str | None = None
        self._thread: Worker | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        refuse_existing(self._output, overwrite=self._overwrite)
        try:
            self._start()
        except OSError as error:
            self.abort()
            raise disk_error(error, STAGE) from error
        except BaseException:
            self.abort()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def hear(self, sound: NDArray[np.float32]) -> None:
        """The sound that was awaited."""
        self._sound = _judged(sound, self._shape.frames, self._encode.sample_rate)
        try:
            self._write_sound()
        except OSError as error:
            raise disk_error(error, STAGE) from error
        self._heard.set()

    def put(self, chunk: NDArray[np.uint8]) -> None:
        """Queue uint8 RGB [n, H, W, 3]; waits while `QUEUED_CHUNKS` are unwritten. An earlier failure shows here."""
        size = (self._shape.height, self._shape.width, 3)
        if chunk.dtype != np.uint8 or chunk.ndim != 4 or chunk.shape[1:] != size:
            raise ValueError(f"a chunk of {chunk.dtype} {chunk.shape}, expected uint8 (n, {size[0]}, {size[1]}, 3)")
        if self._taken + len(chunk) > self._shape.frames:
            raise ValueError(f"{self._taken + len(chunk)} frames, {self._shape.frames} were promised")
        if self._awaits_sound and not self._heard.is_set():
            raise ValueError("a frame before the sound that was promised")
        self._taken += len(chunk)
        self._hand_over(np.array(chunk, order="C"))

    def finish(self, on_alive: Callable[[], None] = lambda: None) -> WrittenClip:
        """Wait for ffmpeg, count what it wrote, give the file its name.

        on_alive: called at most once a `SIGN_SECONDS` while ffmpeg gets on: it may have minutes of a clip before it
        when the last frame has been handed over.
        """
        if self._taken != self._shape.frames:
            raise ValueError(f"{self._taken} frames, {self._shape.frames} were promised")
        self._stage = STAGE
        self._hand_over(None)
        signs = _Signs(self._progress, on_alive)
        while self._writing():
            self._raise_failure()
            signs.look()
        self._raise_failure()
        self._count()
        try:
            size, digest = deliver(self._clip, self._output, overwrite=self._overwrite)
        except OSError as error:
            raise disk_error(error, STAGE) from error
        return WrittenClip(
            output=self._output,
            bytes=size,
            sha256=digest,
            frames=self._taken,
            pictures=self._pictures,
            samples=0 if self._sound is None else self._sound.shape[-1],
            video_codec=self._encode.video_codec,
            video_encoder=video_encoder_of(self._tool, self._encode),
            audio_codec=None if self._sound is None else self._encode.audio_codec,
        )

    def abort(self) -> None:
        """End ffmpeg and remove the temporary files; nothing left to do after `finish`. May be called again."""
        self._abandoned.set()
        if self._thread is not None:
            self._thread.join()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def shape(self) -> ClipShape:
        return self._shape

    @property
    def _clip(self) -> Path:
        assert self._folder is not None
        return self._folder / temporary_name(self._encode)

    @property
    def _wav(self) -> Path:
        assert self._folder is not None
        return self._folder / "sound.wav"

    @property
    def _pictures(self) -> int:
        return picture_count(self._shape.frames, self._rate)

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=".clip-", dir=self._scratch)).absolute()
        if self._sound is not None:
            self._write_sound()
        wav = self._wav if self._awaits_sound or self._sound is not None else None
        gated = self._awaits_sound
        command = mux_command(self._tool, self._shape, wav, self._clip, self._encode, self._loglevel, gated=gated)
        child = Child(
            command,
            stall_seconds=self._limits.stall,
            given_up=self._abandoned.is_set,
            on_line=None if self._on_line is None else self._say,
        )
        thread = Worker(self._write, (child,))
        try:
            thread.start()
        except BaseException:
            child.end()
            raise
        self._thread = thread

    def _write_sound(self) -> None:
        assert self._sound is not None
        self._wav.write_bytes(wav_bytes(self._sound, self._encode.sample_rate))

    def _hand_over(self, chunk: NDArray[np.uint8] | None) -> None:
        while True:
            self._raise_failure()
            with suppress(queue.Full):
                return self._queue.put(chunk, timeout=POLL)

    def _writing(self) -> bool:
        assert self._thread is not None
        self._thread.join(POLL)
        return self._thread.is_alive()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise encoder_fault(self._failure, self._clip.parent)
        if self._should_stop():
            raise JobCancelled("The job was cancelled", stage=self._stage)

    def _write(self, child: Child) -> None:
        """The writer thread: chunks to ffmpeg until the sentinel, then its end. Owns the child."""
        fed = 0
        try:
            if self._awaits_sound:
                self._open_gate(child)
            while (chunk := self._next(child)) is not None:
                self._feed(child, chunk, fed)
                fed += len(chunk)
            child.close_input()
            child.wait(self._progress, self._limits.finish)
        except BaseException as error:
            self._failure = error
        finally:
            child.end()

    def _open_gate(self, child: Child) -> None:
        """Once the sound is there."""
        while not self._heard.wait(POLL):
            child.check()
        child.feed(memoryview(GATE))

    def _feed(self, child: Child, chunk: NDArray[np.uint8], first: int) -> None:
        """A chunk as it is, or each of its frames, from number `first` on, as often as the delivered rate shows it."""
        if self._rate == FPS:
            child.feed(chunk.reshape(-1).data)
            return
        for index, frame in enumerate(chunk, first):
            for _ in range(times_shown(index, self._shape.frames, self._rate)):
                child.feed(frame.reshape(-1).data)

    def _say(self, line: str) -> None:
        if self._on_line is not None and not is_chatter(line):
            self._on_line(line)

    def _next(self, child: Child) -> NDArray[np.uint8] | None:
        while True:
            child.check()
            with suppress(queue.Empty):
                return self._queue.get(timeout=POLL)

    def _progress(self) -> tuple[int, int]:
        """Changes whenever ffmpeg writes. Faststart rewrites in place at the end: the size alone would stand still."""
        with suppress(FileNotFoundError):
            facts = self._clip.stat()
            return facts.st_size, facts.st_mtime_ns
        return 0, 0

    def _count(self) -> None:
        try:
            video, audio = count_packets(self._clip)
        except BadMedia as error:
            raise EncoderFailed("The encoder wrote a file that can't be read", stage=STAGE) from error
        if video != self._pictures or (self._sound is not None and not audio):
            raise EncoderFailed(
                f"The encoder wrote {video} of {self._pictures} frames and {audio} sound packets", stage=STAGE
            )


def _judged(sound: NDArray[np.float32], frames: int, rate: int) -> NDArray[np.float32]:
    if sound.ndim != 2 or sound.shape[0] not in (1, 2) or sound.dtype != np.float32:
        raise ValueError(f"a sound of {sound.dtype} {sound.shape}, expected float32 (1 or 2, n)")
    cut = trim(sound, frames)
    require_finite(cut, STAGE)
    return at_rate(cut, rate, samples_for(frames, rate=rate))


class _Signs:
    """Passes on that what `progress` returns has changed, not too often."""

    def __init__(self, progress: Callable[[], object], on_alive: Callable[[], None]) -> None:
        self._progress, self._on_alive = progress, on_alive
        self._seen, self._told = progress(), time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        if now - self._told >= SIGN_SECONDS and (found := self._progress()) != self._seen:
            self._seen, self._told = found, now
            self._on_alive()
