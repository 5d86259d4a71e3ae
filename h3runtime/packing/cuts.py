"""Where the clips of a chain are cut, on one clock that starts with the first of them.

Does the frames of each clip: which of the whole it gives, how many of its own repeat what lies before, and its legal
length. Pixels and sound follow elsewhere: `engine.chain` cuts the pictures, `media.joining` the sound. Fed and read by
the command line; integers and fractions only.

    wanted seconds   s_0, s_1, ..                as written, in exact fractions: 30 times 5.2 s is 156 s
    cut i            round(24 (s_0 + .. + s_i))   so that no error of rounding grows along the chain
    clip i gives     [cut i-1, cut i)
    its own frames   the least 17n+5 that holds its overlap and what it gives

The overlap is the guide at its frame 0: the last frames made before the cut. What is over at its end is a surplus.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from h3runtime.core import FPS
from h3runtime.packing.geometry import frames_at_least, guide_frames


class Share(NamedTuple):
    """Pixel frames [start, stop) of the whole, which are [overlap, overlap + stop - start) of a clip of F `frames`."""

    start: int
    stop: int
    overlap: int
    frames: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def exact(number: float | int) -> Fraction:
    """The fraction that was written: 5.2 is 26/5, not the binary number beside it."""
    return Fraction(repr(number))


def cuts(seconds: Sequence[Fraction]) -> tuple[int, ...]:
    """The frame at which each clip ends; a clip that begins there and has no frame is for the caller to refuse."""
    ends, total = [], Fraction(0)
    for length in seconds:
        total += length
        ends.append(round(FPS * total))
    return tuple(ends)


def share(start: int, stop: int, wanted: int) -> Share:
    """`wanted` frames of overlap, 0 for a hard cut. Where fewer exist before `start`, as many as make a legal guide:
    17n+5 of them, or a still."""
    overlap = guide_frames(min(wanted, start)) if wanted and start else 0
    return Share(start, stop, overlap, frames_at_least(overlap + stop - start))


def shares(seconds: Sequence[Fraction], wanted: Sequence[int]) -> tuple[Share, ...]:
    """All clips of a chain. wanted: frames of overlap of each; the first one's is moot."""
    ends = cuts(seconds)
    return tuple(share(start, stop, n) for start, stop, n in zip((0, *ends), ends, wanted, strict=False))
