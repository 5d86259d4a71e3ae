"""A clip or a sound as it is read from its start to its end: frames and samples one piece at a time.

Does: say what a file holds without decoding it, and decode it in pieces that don't grow with it. Does not: seek or
resample. Any container and codec that PyAV's FFmpeg reads. `probe` opens files and converts pictures; `compare` reads.

    outline      from headers and packets
    each_frame   uint8 [H, W, 3]
    each_block   float32 [C, n], n is BLOCK but for the last, which is shorter

Containers without edit lists start the sound before the picture, by what its encoder takes to get going (1,024 samples
of AAC in Matroska and MPEG-TS); `each_block` leaves out what lies before the first picture, so that sounds of two
containers line up.
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

from h3runtime.errors import BadMedia, bad_media
from h3runtime.media.probe import opened, to_rgb

BLOCK = 65_536
"""Samples a channel: two seconds at 32 kHz."""


@dataclass(frozen=True, slots=True)
class PictureOutline:
    """`frames` are the packets in the file: pictures, in nearly every codec. `start`: seconds on the file's clock."""

    width: int
    height: int
    rate: Fraction
    frames: int
    start: float | None


@dataclass(frozen=True, slots=True)
class SoundOutline:
    """`seconds`: length as the packets tell it, None where they don't."""

    rate: int
    channels: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Outline:
    pictures: PictureOutline | None
    sound: SoundOutline | None


@dataclass(slots=True)
class _Span:
    """Packets of a stream: how many, and from when to when."""

    packets: int = 0
    start: float | None = None
    end: float | None = None

    def take(self, packet: av.Packet[Any]) -> None:
        self.packets += 1
        if packet.pts is not None and packet.time_base is not None:
            start = float(packet.pts * packet.time_base)
            end = start + float((packet.duration or 0) * packet.time_base)
            self.start = start if self.start is None else min(start, self.start)
            self.end = end if self.end is None else max(end, self.end)


def outline(path: Path, field: str) -> Outline:
    """`BadMedia` naming `field` if it can't be read or holds neither pictures nor sound. The first stream of a kind."""
    with opened(path, field) as container:
        streams = [*container.streams.video[:1], *container.streams.audio[:1]]
        if not streams:
            raise _bad(field, "it holds neither pictures nor sound")
        spans = {stream.index: _Span() for stream in streams}
        for packet in container.demux(streams):
            if packet.size:
                spans[packet.stream.index].take(packet)
        pictures = _pictures(container, spans, field)
        return Outline(pictures, _sound(container, spans, pictures, field))


def each_frame(path: Path, field: str) -> Generator[NDArray[np.uint8], None, None]:
    """All frames as RGB. `BadMedia` naming `field` where it can't be decoded, or its frames change size."""
    size: tuple[int, ...] | None = None
    with opened(path, field) as container:
        for index, decoded in enumerate(container.decode(container.streams.video[0])):
            frame = to_rgb(decoded)
            if size is not None and frame.shape != size:
                raise _bad(field, f"its frames change size at frame {index}")
            size = frame.shape
            yield frame


def each_block(path: Path, field: str, start: float | None = None) -> Generator[NDArray[np.float32], None, None]:
    """All samples from `start` (seconds on the file's clock; None: the first there is). Values that aren't finite, and
    a sound that changes its channels, are `BadMedia`."""
    held: NDArray[np.float32] | None = None
    for piece in _pieces(path, field, start):
        if not np.isfinite(piece).all():
            raise _bad(field, "its sound holds values that are not finite")
        held = piece if held is None else np.concatenate([held, piece], axis=1)
        while held.shape[1] >= BLOCK:
            yield held[:, :BLOCK]
            held = held[:, BLOCK:]
    if held is not None and held.shape[1]:
        yield held


def _pieces(path: Path, field: str, start: float | None) -> Generator[NDArray[np.float32], None, None]:
    with opened(path, field) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp", layout=stream.layout, rate=stream.rate)
        early: int | None = None
        for decoded in container.decode(stream):
            if early is None:
                early = _early(decoded.time, start, stream.rate)
            for out in resampler.resample(decoded):
                samples = out.to_ndarray().astype(np.float32, copy=False)
                yield samples[:, early:]
                early -= min(early, samples.shape[1])
        for out in resampler.resample(None):
            yield out.to_ndarray().astype(np.float32, copy=False)


def _early(begins: float | None, start: float | None, rate: int) -> int:
    """Samples before `start`."""
    return 0 if begins is None or start is None else max(0, round((start - begins) * rate))


def _pictures(container: av.container.InputContainer, spans: dict[int, _Span], field: str) -> PictureOutline | None:
    if not container.streams.video:
        return None
    stream = container.streams.video[0]
    span = spans[stream.index]
    if not (stream.width and stream.height and span.packets):
        raise _bad(field, "its pictures can't be decoded")
    # A fraction of PyAV's own since 19, which can be compared but hardly computed with.
    rate = Fraction(stream.average_rate or 0)
    return PictureOutline(stream.width, stream.height, rate, span.packets, span.start)


def _sound(
    container: av.container.InputContainer, spans: dict[int, _Span], pictures: PictureOutline | None, field: str
) -> SoundOutline | None:
    if not container.streams.audio:
        return None
    stream = container.streams.audio[0]
    span = spans[stream.index]
    if not (stream.rate and stream.channels):
        raise _bad(field, "its sound can't be decoded")
    start = pictures.start if pictures is not None and pictures.start is not None else span.start
    seconds = None if span.end is None or start is None else span.end - start
    return SoundOutline(stream.rate, stream.channels, seconds)


def _bad(field: str, why: str) -> BadMedia:
    return bad_media(field, why, "a whole clip or sound")
