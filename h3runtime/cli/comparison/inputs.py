"""The two media of a comparison before anything is decoded: what they hold, and whether that can be compared.

Feeds `media`. A folder of frames is a medium without sound, a sound file one without pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h3runtime.cli.comparison.found import Kind
from h3runtime.core import FPS
from h3runtime.errors import Offence, invalid
from h3runtime.media.clip_stream import SoundOutline, each_block, each_frame, outline
from h3runtime.media.frame_folder import each_picture, frame_paths
from h3runtime.media.pictures import measure_picture
from h3runtime.media.similarity import WINDOW

Frames = Generator[NDArray[np.uint8], None, None]
Blocks = Generator[NDArray[np.float32], None, None]

RATE_SLACK = Fraction(1, 2000)
"""Containers that count in milliseconds tell a rate this well; 24 and 23.976 differ by twice as much."""
SOUND_SLACK = 0.25
"""Seconds that two sounds may differ in length: what encoders put before and after a sound, and then some."""
SAME = "the same in both"


@dataclass(frozen=True, slots=True)
class Pictures:
    """`rate` in frames a second. `frames`: by the packets, which need not be the pictures that come out."""

    width: int
    height: int
    rate: Fraction
    frames: int
    read: Callable[[], Frames]

    @property
    def is_native(self) -> bool:
        """At the rate of the model, so that its frames may be those that the VAE decoded."""
        return is_same_rate(self.rate, Fraction(FPS))


@dataclass(frozen=True, slots=True)
class Sound:
    outline: SoundOutline
    read: Callable[[], Blocks]


@dataclass(frozen=True, slots=True)
class Medium:
    """One of the two inputs; at least one of its streams is there."""

    path: Path
    pictures: Pictures | None
    sound: Sound | None

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(name for name, stream in (("video", self.pictures), ("audio", self.sound)) if stream is not None)


def media_of(kind: Kind, a: Path, b: Path) -> tuple[Medium, Medium]:
    """Both inputs. BadMedia for what can't be read, InvalidRequest with everything in which they must not differ."""
    opened = folder_medium if kind == "frames" else clip_medium
    first, second = opened(a, "a"), opened(b, "b")
    if first.pictures and second.pictures and first.pictures.frames != second.pictures.frames:
        # A codec may spread a picture over two packets, or have packets that show nothing.
        first = replace(first, pictures=_recounted(first.pictures))
        second = replace(second, pictures=_recounted(second.pictures))
    offences = [
        *_presence(first, second),
        *_pictures_differ(first.pictures, second.pictures),
        *_sounds_differ(first.sound, second.sound),
    ]
    if offences:
        raise invalid(offences)
    return first, second


def clip_medium(path: Path, field: str) -> Medium:
    label = f"{field} ({path})"
    seen = outline(path, label)
    start = seen.pictures.start if seen.pictures else None
    pictures = sound = None
    if seen.pictures:
        shape = seen.pictures
        pictures = Pictures(shape.width, shape.height, shape.rate, shape.frames, lambda: each_frame(path, label))
    if seen.sound:
        sound = Sound(seen.sound, lambda: each_block(path, label, start))
    return Medium(path, pictures, sound)


def folder_medium(path: Path, field: str) -> Medium:
    """Its frames are taken to be 24 a second, as those of `decode --frames` are."""
    label = f"{field} ({path})"
    paths = frame_paths(path, label)
    facts = measure_picture(paths[0], f"{label}, {paths[0].name}")
    pictures = Pictures(facts.width, facts.height, Fraction(FPS), len(paths), lambda: each_picture(paths, label))
    return Medium(path, pictures, None)


def is_same_rate(a: Fraction, b: Fraction) -> bool:
    return abs(a - b) <= RATE_SLACK * max(a, b)


def is_same_length(a: float, b: float) -> bool:
    """Seconds of sound."""
    return abs(a - b) <= SOUND_SLACK


def lengths_differ(a: str, b: str) -> Offence:
    return Offence("sound", f"a has {a} and b has {b}", f"lengths at most {SOUND_SLACK} s apart")


def _recounted(pictures: Pictures) -> Pictures:
    return replace(pictures, frames=sum(1 for _ in pictures.read()))


def _presence(a: Medium, b: Medium) -> Iterator[Offence]:
    for name, first, second in (("pictures", a.pictures, b.pictures), ("sound", a.sound, b.sound)):
        if (first is None) != (second is None):
            has, lacks = ("a", "b") if second is None else ("b", "a")
            yield Offence(name, f"{has} has {name} and {lacks} has none", f"{name} in both or in none")


def _pictures_differ(a: Pictures | None, b: Pictures | None) -> Iterator[Offence]:
    if a is None or b is None:
        return
    yield from _unequal("width", a.width, b.width)
    yield from _unequal("height", a.height, b.height)
    yield from _unequal("frames", a.frames, b.frames)
    if not is_same_rate(a.rate, b.rate):
        yield from _unequal("fps", float(a.rate), float(b.rate))
    smallest = min(a.width, a.height, b.width, b.height)
    if smallest < WINDOW:
        yield Offence("size", f"a side has {smallest} pixels", f"at least {WINDOW}, the window of SSIM")


def _sounds_differ(a: Sound | None, b: Sound | None) -> Iterator[Offence]:
    if a is None or b is None:
        return
    first, second = a.outline, b.outline
    yield from _unequal("sample_rate", first.rate, second.rate)
    yield from _unequal("channels", first.channels, second.channels)
    if first.seconds is not None and second.seconds is not None and not is_same_length(first.seconds, second.seconds):
        yield lengths_differ(f"{first.seconds:.2f} s", f"{second.seconds:.2f} s")


def _unequal(field: str, a: float, b: float) -> Iterator[Offence]:
    if a != b:
        yield Offence(field, f"a has {a:g} and b has {b:g}", SAME)
