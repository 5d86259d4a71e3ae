"""The end of a clip kept without loss: FFV1 pictures and float samples in Matroska, for a clip that continues it.

The engine writes it beside the clip; `clip_frames` and `read_sound_in` read it back bit for bit. Not a format for
delivery: nothing but FFmpeg plays it.

    pictures   FFV1 version 3, RGB (bgr0), 24 fps, every one a key picture, in SLICES slices that threads share, each
               with a checksum
    sound      pcm_f32le, 32 kHz stereo, beside the pictures it belongs to; no stream if there is none
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from h3runtime.core import FPS, SAMPLE_RATE
from h3runtime.errors import EncoderFailed
from h3runtime.media.delivery import deliver, disk_error
from h3runtime.media.sound import samples_for

STAGE = "tail"
SLICES = 16
"""A 4x4 grid, as FFV1 wants one; enough for as many cores."""


class LosslessWriter:
    """Frames of `width` x `height` at 24 fps beside `waveform`, float32 [2, n] at 32 kHz, n may be 0.

    Nothing is under `path` before `finish`, and an older file stays there until then. `JobDiskFull`, `EncoderFailed`.
    """

    def __init__(self, path: Path, width: int, height: int, waveform: NDArray[np.float32]) -> None:
        if waveform.dtype != np.float32 or waveform.ndim != 2 or len(waveform) != 2:
            raise ValueError(f"a sound of {waveform.dtype} {waveform.shape}, expected float32 (2, n)")
        self._path, self._size, self._waveform = path, (height, width, 3), waveform
        self._unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._frames = self._samples = 0
        with self._typed():
            # FFmpeg opens the file with the first packet only, and a folder that is gone should show itself now.
            self._unfinished.touch()
            self._container = av.open(str(self._unfinished), "w", format="matroska")
            self._pictures = self._container.add_stream("ffv1", rate=FPS, options={"level": "3", "slices": str(SLICES)})
            self._pictures.width, self._pictures.height, self._pictures.pix_fmt = width, height, "bgr0"
            self._pictures.thread_type = "SLICE"
            self._sound = None
            if waveform.shape[1]:
                self._sound = self._container.add_stream("pcm_f32le", rate=SAMPLE_RATE, layout="stereo")

    def put(self, frames: NDArray[np.uint8]) -> None:
        """uint8 [n, H, W, 3], the next ones."""
        if frames.dtype != np.uint8 or frames.shape[1:] != self._size:
            raise ValueError(f"frames of {frames.dtype} {frames.shape}, expected uint8 (n, {self._size})")
        with self._typed():
            for frame in frames:
                self._put_picture(frame)
                self._put_sound(samples_for(self._frames))

    def finish(self) -> None:
        """Write the rest of the sound and give the whole file its name."""
        with self._typed():
            self._put_sound(self._waveform.shape[1])
            self._container.mux(self._pictures.encode())
            if self._sound is not None:
                self._container.mux(self._sound.encode())
            self._container.close()
            deliver(self._unfinished, self._path, overwrite=True)

    def abandon(self) -> None:
        """Leave nothing behind; harmless after `finish` and when repeated."""
        self._container.close()
        self._unfinished.unlink(missing_ok=True)

    def _put_picture(self, pixels: NDArray[np.uint8]) -> None:
        picture = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="bgr0")
        picture.pts, picture.time_base = self._frames, Fraction(1, FPS)
        self._frames += 1
        self._container.mux(self._pictures.encode(picture))

    def _put_sound(self, end: int) -> None:
        samples = self._waveform[:, self._samples : end]
        if self._sound is None or not samples.shape[1]:
            return
        packed = np.ascontiguousarray(samples.T).reshape(1, -1)
        block = av.AudioFrame.from_ndarray(packed, format="flt", layout="stereo")
        block.sample_rate, block.pts, block.time_base = SAMPLE_RATE, self._samples, Fraction(1, SAMPLE_RATE)
        self._samples += samples.shape[1]
        self._container.mux(self._sound.encode(block))

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Whatever goes wrong, the unfinished file goes too."""
        try:
            yield
        except OSError as error:
            self._unfinished.unlink(missing_ok=True)
            raise disk_error(error, STAGE) from error
        except ValueError as error:
            self._unfinished.unlink(missing_ok=True)
            raise EncoderFailed("The clip's tail can't be written", stage=STAGE) from error
