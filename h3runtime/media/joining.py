"""The sounds of a chain's clips as one: each in its place on the sample clock, faded into the next at each cut.

Pure numpy. Fed by `engine.chain` with one clip's sound at a time; the loudness rule comes after, over the whole.

Sample of frame f: round(32000/24 f). A clip that gives [start, stop) and whose own first `overlap` frames repeat what
lies before begins at the sample of start - overlap; what it has beyond stop is its surplus.

    old   ~~~~~~~~~~~~~~~~~~~|~surplus~        overlap: both sides are meant to be the same sound, so the weights
    new            ~overlap~~|~~~~~~~~~~~~     (cos^2, sin^2) add up to 1 and the level of an equal sound stays as it is
                        [fade 50 ms]           the fade lies around the cut, earlier where there is no surplus

Without an overlap the two are strangers: cos and sin keep the power, over up to 25 ms of surplus behind the cut. Where
there is none either, 5 ms on each side keep the cut from clicking. The total never grows, and no fade reaches beyond
the middle of a clip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import FPS, SAMPLE_RATE
from h3runtime.media.sound import samples_for

FADE = SAMPLE_RATE // 20
"""Samples: 50 ms (the issue leaves the length open)."""
CLICK = SAMPLE_RATE // 200
"""Samples: 5 ms, one period of 200 Hz."""

Sound = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Place:
    """What a clip gives: pixel frames [start, stop) of the whole; its own first `overlap` frames lie before `start`."""

    start: int
    stop: int
    overlap: int = 0


class Fade(NamedTuple):
    """Samples [begin, end) on the clock of the whole. level: the weights of both sides add up to 1, else their squares
    do."""

    begin: int
    end: int
    level: bool


@dataclass(frozen=True, slots=True)
class Crossing:
    """How one clip leaves and the next one enters."""

    leave: Fade
    enter: Fade


def sample_at(frame: int) -> int:
    """The sample at which a pixel frame begins: round(32000/24 * frame), in integers."""
    return (2 * SAMPLE_RATE * frame + FPS) // (2 * FPS)


def join(places: Sequence[Place], sounds: Iterable[Sound]) -> Sound:
    """One sound of all: float32 [2, n], n <= samples_for(frames of the whole), from `places[0].start` on.

    places: in order, each beginning where the one before ends. sounds: float32 [2, n_i], one at a time; each begins
    with its clip's first frame. Silence fills what no clip has; the end is never padded.
    """
    origin = sample_at(places[0].start)
    length = samples_for(places[-1].stop - places[0].start)
    whole = np.zeros((2, length), np.float32)
    following: Sequence[Place | None] = [*places[1:], None]
    enter: Fade | None = None
    end = 0
    for place, after, sound in zip(places, following, sounds, strict=True):
        begin = sample_at(place.start - place.overlap) - origin
        crossing = None if after is None else _crossing(place, after, begin + sound.shape[1], origin)
        leave = None if crossing is None else crossing.leave
        _lay(whole, sound, begin, enter, leave)
        end = begin + sound.shape[1]
        enter = None if crossing is None else crossing.enter
    return whole[:, : min(length, end)]


def _crossing(old: Place, new: Place, old_end: int, origin: int) -> Crossing:
    """old_end: the sample after the old clip's last."""
    cut = sample_at(new.start) - origin
    half_old, half_new = _half(old), _half(new)
    if new.overlap:
        end = min(cut + min(FADE // 2, half_new), old_end)
        begin = min(end, max(end - FADE, cut - half_old, sample_at(new.start - new.overlap) - origin))
        fade = Fade(begin, end, level=True)
        return Crossing(fade, fade)
    end = min(cut + min(FADE // 2, half_new), old_end)
    if end - cut >= min(CLICK, half_new):
        fade = Fade(cut, end, level=False)
        return Crossing(fade, fade)
    last = min(cut, old_end)
    leave = Fade(last - min(CLICK, half_old), last, level=False)
    return Crossing(leave, Fade(cut, cut + min(CLICK, half_new), level=False))


def _half(place: Place) -> int:
    return (sample_at(place.stop) - sample_at(place.start)) // 2


def _lay(whole: Sound, sound: Sound, begin: int, enter: Fade | None, leave: Fade | None) -> None:
    """Add a clip's sound from where it enters to where it has left."""
    first = max(0, begin) if enter is None else enter.begin
    last = min(whole.shape[1], begin + sound.shape[1])
    if leave is not None:
        last = min(last, leave.end)
    piece = sound[:, first - begin : last - begin].copy()
    if enter is not None:
        piece[:, : enter.end - first] *= rising(enter)[: piece.shape[1]]
    if leave is not None:
        falling = rising(leave)[::-1] if not leave.level else np.float32(1) - rising(leave)
        piece[:, leave.begin - first :] *= falling
    whole[:, first:last] += piece


def rising(fade: Fade) -> NDArray[np.float32]:
    """float32 weights of what enters, at the middle of each sample's step."""
    length = fade.end - fade.begin
    sine = np.sin(np.pi / 2 * (np.arange(length) + 0.5) / max(length, 1))
    weights: NDArray[np.float32] = (sine**2 if fade.level else sine).astype(np.float32)
    return weights
