"""What a clip or a sound holds as its packets tell it: size, pictures, length, rates, without decoding the whole.

Runs in `examiner`, never in the service's own process. The figures are those that `full_measure` counts, as long as the
file's packets tell the truth. Decoded are only: the first picture, for the matrix that turns it, which no packet tells
(one that can't be decoded counts as upright here); and animated pictures, whose times nothing else tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from fractions import Fraction

import av
import av.container

from h3runtime.core import FPS
from h3runtime.errors import BadMedia
from h3runtime.media.intake.clip_clock import ClipClock
from h3runtime.media.intake.clip_pictures import ClipPicture, clip_pictures
from h3runtime.media.intake.containers import bad_medium, opened_medium, picture_stream, sound_stream
from h3runtime.media.intake.examine import Ask, ClipMeasure, Limits, Measured, SoundMeasure
from h3runtime.media.intake.first_picture import first_picture_time
from h3runtime.media.intake.moving_picture import is_moving
from h3runtime.media.intake.packet_span import PacketSpan
from h3runtime.media.intake.turning import square_width

Upright = tuple[int, int, int]
"""Width and height of the upright picture, and the degrees that turned it."""
NEAR = 0.02
"""A rate that the file states is believed if its packets agree within this share."""
CUT_SHORT = 1.0
"""Seconds that a Matroska file may end before its header says."""


def measured(ask: Ask, limits: Limits) -> Measured:
    """`BadMedia` naming the ask's field for what is no such medium, or is larger than `limits`."""
    if is_moving(ask.path, ask.field):
        if ask.kind == "sound":
            raise bad_medium(ask.field, "it is an animated picture, not a sound")
        return Measured(_animation(ask, limits), None)
    zero = first_picture_time(ask.path, ask.field)
    with opened_medium(ask.path, ask.field) as container:
        pictures, sound = picture_stream(container), sound_stream(container)
        if ask.kind == "clip" and pictures is None:
            raise bad_medium(ask.field, "it has no pictures" if sound is None else "it is a sound, not a clip")
        if ask.kind == "sound" and sound is None:
            raise bad_medium(ask.field, "it has no sound")
        streams = [stream for stream in (pictures, sound) if stream is not None]
        spans = _spans(container, streams, ask.field, limits)
        _refuse_cut(container, ask, max(span.end for span in spans.values()))
        clip = None
        if ask.kind == "clip" and pictures is not None:
            clip = _clip(ask, pictures, spans[pictures.index], zero, limits)
        return Measured(clip, None if sound is None else _sound(sound, spans[sound.index], zero, ask))


def rate_of(pictures: int, seconds: Fraction, stated: Fraction | float | None) -> float:
    """Pictures a second: as the file states it if that is about true, else counted."""
    counted = float(pictures / seconds) if seconds else 0.0
    return float(stated) if stated and abs(float(stated) - counted) <= NEAR * counted else round(counted, 3)


def clip_measure(size: Upright, pictures: int, clock: ClipClock, stated: Fraction | float | None = None) -> ClipMeasure:
    """From the number of pictures and the clock after the last one."""
    frames = clock.end().stop
    return ClipMeasure(*size, rate_of(pictures, clock.seconds, stated), pictures, frames, frames / FPS)


def sound_measure(samples: int, rate: int, channels: int) -> SoundMeasure:
    return SoundMeasure(rate, channels, samples, samples / rate)


def upright_size(picture: ClipPicture) -> Upright:
    return picture.width, picture.height, picture.turning.degrees


def refuse_long(seconds: Fraction, field: str, limit: float) -> None:
    if seconds > limit:
        raise bad_medium(field, f"it is longer than {limit:g} s")


def _animation(ask: Ask, limits: Limits) -> ClipMeasure:
    clock, pictures, size = ClipClock(), 0, (0, 0, 0)
    for picture in clip_pictures(ask.path, ask.field, max_pixels=limits.pixels):
        clock.show(picture.stamp)
        pictures += 1
        size = upright_size(picture)
        refuse_long(clock.seconds, ask.field, limits.measure_seconds)
    return clip_measure(size, pictures, clock)


def _spans(
    container: av.container.InputContainer,
    streams: list[av.VideoStream | av.AudioStream],
    field: str,
    limits: Limits,
) -> Mapping[int, PacketSpan]:
    spans = {s.index: PacketSpan(s.rate if isinstance(s, av.AudioStream) else None) for s in streams}
    packets = 0
    for packet in container.demux(streams):
        if packet.size:
            span = spans[packet.stream_index]
            span.take(packet)
            packets += 1
            if packets > limits.packets:
                raise bad_medium(field, f"it has more than {limits.packets} packets")
            refuse_long(span.end - (span.begin or 0), field, limits.measure_seconds)
    return spans


def _refuse_cut(container: av.container.InputContainer, ask: Ask, end: Fraction) -> None:
    """Files whose index or header tells of more than there is."""
    is_cut = False
    if "mov" in container.format.name:
        size = ask.path.stat().st_size
        is_cut = any(entry.pos + entry.size > size for stream in container.streams for entry in stream.index_entries)
    elif "matroska" in container.format.name and container.duration is not None:
        is_cut = float(end) + CUT_SHORT < container.duration / av.time_base
    if is_cut:
        raise bad_medium(ask.field, "it is cut short")


def _clip(ask: Ask, stream: av.VideoStream, span: PacketSpan, zero: Fraction | None, limits: Limits) -> ClipMeasure:
    if not span.shown:
        raise bad_medium(ask.field, "it has no pictures")
    if stream.width * stream.height > limits.pixels:
        raise bad_medium(ask.field, f"its pictures have more than {limits.pixels} pixels")
    size = _first_size(ask, limits) or (square_width(stream.width, stream.sample_aspect_ratio), stream.height, 0)
    return clip_measure(size, span.shown, span.clock(zero), stream.average_rate)


def _first_size(ask: Ask, limits: Limits) -> Upright | None:
    """By the first picture; None if it can't be decoded, which is for `full_measure` to say."""
    with suppress(BadMedia), closing(clip_pictures(ask.path, ask.field, max_pixels=limits.pixels)) as pictures:
        return next(map(upright_size, pictures), None)
    return None


def _sound(stream: av.AudioStream, span: PacketSpan, zero: Fraction | None, ask: Ask) -> SoundMeasure | None:
    """From the zero of the file's clock on; None beside pictures if it ends before."""
    begin = span.begin if zero is None else zero
    samples = 0 if begin is None else round((span.end - begin) * stream.rate)
    if samples > 0:
        return sound_measure(samples, stream.rate, stream.channels)
    if ask.kind == "sound":
        raise bad_medium(ask.field, "it has no sound")
    return None
