"""Two clips, two sounds or two folders of frames: sums frame by frame and block by block, never more than that at once.

`inputs` has settled that they can be compared. Frames are paired by their order, samples from the first picture on.
Frames that the VAE decoder made by fading one chunk into the next are marked where the rate is 24; at another rate the
frames are not the decoder's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from h3runtime.cli.comparison.found import Found, Kind, OnPart, Point, Series, total
from h3runtime.cli.comparison.inputs import SAME, Medium, Pictures, Sound, is_same_length, lengths_differ
from h3runtime.core import FPS
from h3runtime.errors import Offence, invalid
from h3runtime.media.agreement import Agreement
from h3runtime.media.clip_stream import BLOCK
from h3runtime.media.log_mel import LogMelDistance
from h3runtime.media.similarity import ssim
from h3runtime.packing.geometry import is_join


@dataclass(frozen=True, slots=True)
class SoundFound:
    """`samples` of a and of b, a channel."""

    sums: Agreement
    log_mel_db: float
    samples: tuple[int, int]


def compare_media(kind: Kind, first: Medium, second: Medium, on_part: OnPart) -> Found:
    """What `media_of` returned. BadMedia where one can't be decoded, InvalidRequest where their real lengths differ.
    Parts are frames and blocks."""
    count = _Parts(first, on_part)
    points = compare_pictures(first.pictures, second.pictures, count) if first.pictures and second.pictures else ()
    sound = compare_sound(first.sound, second.sound, count) if first.sound and second.sound else None
    streams = {"video": total(point.sums for point in points)} if first.pictures else {}
    return Found(
        kind=kind,
        a=first.path,
        b=second.path,
        facts=_facts(first, len(points)),
        streams=streams | ({"audio": sound.sums} if sound else {}),
        series=_series(first.pictures, points),
        log_mel_db=sound.log_mel_db if sound else None,
        samples=sound.samples if sound else None,
        warnings=tuple(_warnings(first.pictures, sound)),
    )


def compare_pictures(a: Pictures, b: Pictures, on_frame: Callable[[], None]) -> tuple[Point, ...]:
    """In order, joins marked. InvalidRequest if one of them ends before the other, or neither has a frame."""
    points: list[Point] = []
    with closing(a.read()) as first, closing(b.read()) as second:
        for x, y in zip_longest(first, second):
            if x is None or y is None:
                ended = "a" if x is None else "b"
                raise invalid([Offence("frames", f"{ended} ends after {len(points)} and the other goes on", SAME)])
            points.append(Point(len(points), None, False, Agreement.of(x, y), ssim(x, y)))
            on_frame()
    if not points:
        raise invalid([Offence("frames", "there are none in either", "at least one")])
    return tuple(_placed(point, a, len(points)) for point in points)


def compare_sound(a: Sound, b: Sound, on_block: Callable[[], None]) -> SoundFound:
    """Over the samples that both have. InvalidRequest if their numbers are too far apart."""
    rate = a.outline.rate
    distance, sums, samples = LogMelDistance(rate), Agreement(), (0, 0)
    nothing = np.zeros((a.outline.channels, 0), np.float32)
    with closing(a.read()) as first, closing(b.read()) as second:
        for x, y in zip_longest(first, second, fillvalue=nothing):
            samples = samples[0] + x.shape[1], samples[1] + y.shape[1]
            both = slice(0, min(x.shape[1], y.shape[1]))
            sums += Agreement.of(x[:, both], y[:, both])
            distance.feed(x[:, both], y[:, both])
            on_block()
    if not is_same_length(samples[0] / rate, samples[1] / rate):
        raise invalid([lengths_differ(f"{samples[0]} samples", f"{samples[1]} samples")])
    return SoundFound(sums, distance.finish(), samples)


class _Parts:
    """Counts frames and blocks up to what is known of their number before."""

    def __init__(self, medium: Medium, on_part: OnPart) -> None:
        self._on_part, self._done = on_part, 0
        self._all = medium.pictures.frames if medium.pictures else 0
        if medium.sound:
            self._all += 1 + int((medium.sound.outline.seconds or 0) * medium.sound.outline.rate) // BLOCK

    def __call__(self) -> None:
        self._done = min(self._done + 1, self._all)
        self._on_part(self._done, self._all)


def _placed(point: Point, pictures: Pictures, frames: int) -> Point:
    seconds = float(point.index / pictures.rate) if pictures.rate else None
    return replace(point, seconds=seconds, is_join=pictures.is_native and is_join(point.index, frames))


def _series(pictures: Pictures | None, points: tuple[Point, ...]) -> tuple[Series, ...]:
    return () if pictures is None else (Series("per_frame", "frame", points, has_joins=pictures.is_native),)


def _facts(medium: Medium, frames: int) -> dict[str, float]:
    facts: dict[str, float] = {}
    if medium.pictures:
        facts |= {"width": medium.pictures.width, "height": medium.pictures.height}
        facts |= {"frames": frames, "fps": float(medium.pictures.rate)}
    if medium.sound:
        facts |= {"sample_rate": medium.sound.outline.rate, "channels": medium.sound.outline.channels}
    return facts


def _warnings(pictures: Pictures | None, sound: SoundFound | None) -> Iterator[str]:
    if pictures is not None and not pictures.is_native:
        yield f"no joins are marked: they are known for {FPS} frames a second only, not for {float(pictures.rate):g}"
    if sound is not None and sound.samples[0] != sound.samples[1]:
        a, b = sound.samples
        yield f"a's sound has {a} samples and b's {b}; the {min(a, b)} that both have are compared"
