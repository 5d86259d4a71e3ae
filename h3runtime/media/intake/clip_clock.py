"""Which picture of a clip is seen in which 24th of a second: pure arithmetic on presentation times.

Knows nothing of files. `clip_frames` feeds it the pictures that it decodes, `packet_measure` and `full_measure` the
times of packets and pictures; all three therefore count alike.

Times are seconds on any clock; the first picture's is 0 from then on. A picture shown at p begins at slot

    slot(p) = floor(24 p + 1/2)

and holds until the next picture's slot; where several begin at one slot, the last of them has it. The last picture
holds until slot(its time + its duration), which is the clip's length in frames: one at least, and no more than the clip
is long. So 3 s at 60 fps are 72 frames, though the last picture begins at slot 72 and is never seen.

    30 fps   0 1/30 2/30 3/30 4/30 5/30   ->  slots 0 1 2 2 3 4, end 5: the third picture is never seen
    15 fps   0 1/15 2/15                  ->  slots 0 2 3, end 5: pictures 0 0 1 2 2

What files get wrong: a time that is missing is where the picture before ends; one that goes back stands still; a last
duration that is missing, or too short to be one, is the gap before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor

from h3runtime.core import FPS

HALF = Fraction(1, 2)
TICK = Fraction(1, 1000)
"""Durations up to this are units of a file's clock (1 ms, 1/90000 s) that stand for none."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a picture is shown and for how long, in exact seconds; None where the file doesn't say."""

    time: Fraction | None
    duration: Fraction | None = None


def slot(seconds: Fraction) -> int:
    """The 24th of a second nearest to a time, the later one of two."""
    return floor(FPS * seconds + HALF)


class ClipClock:
    """Takes one picture's stamp after another, in the order of showing. Both methods give the slots of the picture
    before; together they are 0, 1, .. with none left out and none twice."""

    def __init__(self) -> None:
        self._first: Fraction | None = None
        self._now = Fraction(0)
        self._gap: Fraction | None = None
        self._duration: Fraction | None = None

    @property
    def seconds(self) -> Fraction:
        """Where the picture shown last ends; 0 before the first."""
        return Fraction(0) if self._first is None else self._now + self._length()

    def show(self, stamp: Stamp) -> range:
        """Slots of the picture before this one: none if there is no such picture or this one takes its place."""
        if self._first is None:
            self._first = stamp.time or Fraction(0)
            self._duration = stamp.duration
            return range(0)
        began = self._now
        self._now = self._next(stamp.time)
        if self._now > began:
            self._gap = self._now - began
        self._duration = stamp.duration
        return range(slot(began), slot(self._now))

    def end(self) -> range:
        """Slots of the last picture, which may have none. Its end is the length of the clip; 0 without pictures."""
        if self._first is None:
            return range(0)
        return range(slot(self._now), max(1, slot(self.seconds)))

    def _next(self, time: Fraction | None) -> Fraction:
        if time is None or self._first is None:
            return self._now + self._length()
        return max(self._now, time - self._first)

    def _length(self) -> Fraction:
        """How long the picture shown last is meant to stay, as far as anything tells."""
        if self._duration is not None and self._duration > TICK:
            return self._duration
        return Fraction(1, FPS) if self._gap is None else self._gap
