"""All media of a request, judged in a child process with a deadline: what they hold by their packets, and what they
really hold once decoded.

`api` calls it at admission, before a job is queued. Opening a hostile file may crash, hang or eat memory, so nothing of
a file is read in the caller's own process: `examiner` is the child, this module is its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from h3runtime.errors import BadMedia


@dataclass(frozen=True, slots=True)
class Ask:
    """One medium to judge. field: its name in the request. kind: `sound` also takes the sound track of a clip."""

    path: Path
    field: str
    kind: Literal["clip", "sound"]


@dataclass(frozen=True, slots=True)
class ClipMeasure:
    """width, height: upright, in square pixels. rotation: degrees clockwise that turned it, 0, 90, 180 or 270. rate:
    pictures a second on average. pictures: in the file. frames: on the 24 fps clock. seconds: frames / 24."""

    width: int
    height: int
    rotation: int
    rate: float
    pictures: int
    frames: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SoundMeasure:
    """As stored. samples: a channel, from the file's first picture on if it has one. seconds: samples / rate."""

    rate: int
    channels: int
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """clip: None for kind `sound`. sound: None if there is none."""

    clip: ClipMeasure | None
    sound: SoundMeasure | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What is read of one medium at most."""

    pixels: int = 8192 * 4320
    measure_seconds: float = 3600.0
    verify_seconds: float = 120.0
    wall_seconds: float = 30.0
    wall_per_second: float = 10.0
    memory_bytes: int = 8 << 30


DEFAULT_LIMITS = Limits()


def measure(asks: Sequence[Ask], limits: Limits = DEFAULT_LIMITS) -> list[Measured | BadMedia]:
    """What each medium holds by its packets; nothing is decoded. One answer per ask, in their order."""
    raise NotImplementedError


def verify(asks: Sequence[Ask], limits: Limits = DEFAULT_LIMITS) -> list[Measured | BadMedia]:
    """What each medium really holds: all of it is decoded. One answer per ask, in their order."""
    raise NotImplementedError
