"""Which picture of a 24 fps clip each picture of a delivered one shows, where that has another rate.

Integers only; `mux` feeds pictures by it, `encode_command` names the rate to ffmpeg. With r = rate / 24, F pictures
become max(1, round(F r)), so that the duration stays; picture i holds the ticks of the new clock from round(i r) to
round((i+1) r), halves up, and the last what is left. That is what was on display in the middle of each new picture, and
what ffmpeg's `fps` filter does.
"""

from __future__ import annotations

from fractions import Fraction

from h3runtime.core import FPS

LARGEST_DENOMINATOR = 1001
"""Of the broadcast rates, 24000/1001 and its like; 12.5 and 33.333 need less."""
BROADCAST_ERROR = Fraction(1, 1000)
"""Pictures a second: 23.976, 29.97 and 59.94 are short for n 1000/1001."""


def rate_of(fps: float) -> Fraction:
    """The rate that a number stands for: 30, 25/2, 24000/1001 of 23.976."""
    given = Fraction(str(fps))
    if given.denominator == 1:
        return given
    broadcast = Fraction(1000 * round(given * 1001 / 1000), 1001)
    close = abs(broadcast - given) < BROADCAST_ERROR
    return broadcast if close and broadcast.denominator > 1 else given.limit_denominator(LARGEST_DENOMINATOR)


def tick_of(index: int, rate: Fraction) -> int:
    """The first tick of the new clock that belongs to picture `index` or one behind it."""
    return _rounded(index * rate / FPS)


def picture_count(frames: int, rate: Fraction) -> int:
    """How many pictures `frames` of 24 fps become."""
    return max(1, tick_of(frames, rate))


def times_shown(index: int, frames: int, rate: Fraction) -> int:
    """In how many pictures of the new clock picture `index` of `frames` is seen; they add up to `picture_count`."""
    last = index == frames - 1
    return (picture_count(frames, rate) if last else tick_of(index + 1, rate)) - tick_of(index, rate)


def _rounded(value: Fraction) -> int:
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)
