"""The sound of a file in pieces, at its own rate, placed on the clock whose zero is the file's first picture.

Any container and codec that PyAV's FFmpeg reads. `sound_in` makes 32 kHz stereo of it, `full_measure` counts it.

    before the zero   cut off, which is where the encoder's lead-in ends in files that don't mark it
    a later start     silence up to it
    a gap, or time that goes back, of more than 0.1 s     silence, or what is said twice cut off; less is jitter
    the zero          the first sample, in a file without pictures

A sound that changes its rate or its channels on the way is refused, and one that holds values that aren't finite or so
far beyond full scale that they can't be meant.
Undecodable packets are forgiven before the first sound and after the last (tags at the ends of MP3 files), not between.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.container
import numpy as np
from numpy.typing import NDArray

from h3runtime.media.intake.containers import bad_medium, opened_medium, sound_stream
from h3runtime.media.intake.first_picture import first_picture_time

JITTER = Fraction(1, 10)
"""Seconds by which times may be off from the count of samples; FFmpeg's own resampler forgives as much."""
LONGEST_GAP = 3600
"""Seconds of silence that times may ask for."""
LOUDEST = 100.0
"""Full scales, +40 dB: what a careless mix in floats stays far below. 1e30 is finite, and nothing after it would be."""
FORGIVEN = 3
"""Undecodable packets after the last sound."""


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """samples: float32 [C, n], full scale is 1. rate: in Hz, the same for all pieces of a file."""

    samples: NDArray[np.float32]
    rate: int


def sound_pieces(path: Path, field: str) -> Generator[SoundPiece, None, None]:
    """All sound from the zero on. `BadMedia` naming `field` for a file without sound, or whose sound can't be used."""
    zero = first_picture_time(path, field)
    with opened_medium(path, field) as container:
        stream = sound_stream(container)
        if stream is None:
            raise bad_medium(field, "it has no sound")
        frames = _frames(container, stream, field)
        yield from _placed(_alike(frames, field), zero, field)


def _frames(
    container: av.container.InputContainer, stream: av.AudioStream, field: str
) -> Generator[av.AudioFrame, None, None]:
    has_sound, broken = False, 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            broken += has_sound
            continue
        if frames and broken:
            raise bad_medium(field, "its sound is damaged")
        has_sound = has_sound or bool(frames)
        yield from frames
    if not has_sound or broken > FORGIVEN:
        raise bad_medium(field, "its sound is damaged")


def _alike(frames: Generator[av.AudioFrame, None, None], field: str) -> Generator[av.AudioFrame, None, None]:
    first: tuple[int, int] | None = None
    for frame in frames:
        kind = frame.sample_rate, len(frame.layout.channels)
        first = first or kind
        if kind != first or not all(kind):
            raise bad_medium(field, "its sound changes its rate or its channels on the way")
        yield frame


def _placed(
    frames: Generator[av.AudioFrame, None, None], zero: Fraction | None, field: str
) -> Generator[SoundPiece, None, None]:
    place: _Place | None = None
    for frame in frames:
        samples, rate, time = _as_float(frame), frame.sample_rate, _time(frame)
        _require_usable(samples, field)
        place = place or _Place(rate, time if zero is None else zero)
        off = place.off(time)
        if off > LONGEST_GAP * rate:
            raise bad_medium(field, f"its sound has a gap of more than {LONGEST_GAP} s")
        yield from _silence(len(samples), off, rate)
        kept = samples[:, max(0, -off) :]
        if kept.shape[1]:
            place.due = (place.due or 0) + max(0, off) + kept.shape[1]
            yield SoundPiece(kept, rate)


@dataclass(slots=True)
class _Place:
    """Where on the clock the next sample belongs: `due` samples after `zero`, or nowhere yet (None)."""

    rate: int
    zero: Fraction | None
    due: int | None = None

    def off(self, time: Fraction | None) -> int:
        """Samples by which sound shown at `time` comes too late (silence goes there) or, negative, too early."""
        if time is None or self.zero is None:
            return 0
        off = round((time - self.zero) * self.rate) - (self.due or 0)
        return 0 if self.due is not None and abs(off) <= JITTER * self.rate else off


def _require_usable(samples: NDArray[np.float32], field: str) -> None:
    if not np.isfinite(samples).all():
        raise bad_medium(field, "its sound holds values that are not finite")
    if np.abs(samples).max(initial=0.0) > LOUDEST:
        raise bad_medium(field, f"its sound goes beyond {LOUDEST:g} times full scale")


def _time(frame: av.AudioFrame) -> Fraction | None:
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def _silence(channels: int, length: int, rate: int) -> Generator[SoundPiece, None, None]:
    for begin in range(0, length, rate):
        yield SoundPiece(np.zeros((channels, min(rate, length - begin)), np.float32), rate)


def _as_float(frame: av.AudioFrame) -> NDArray[np.float32]:
    """float32 [C, n] of any sample format; whole numbers are divided by their full scale, a power of two."""
    raw: NDArray[Any] = frame.to_ndarray()
    samples = raw if frame.format.is_planar else raw.reshape(-1, len(frame.layout.channels)).T
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    full, zero = 2.0 ** (8 * samples.itemsize - 1), 128.0 if samples.dtype.kind == "u" else 0.0
    return ((samples - zero) / full).astype(np.float32)
