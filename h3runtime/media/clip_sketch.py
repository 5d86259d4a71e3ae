"""What a sheet shows of a clip: a few of its frames, evenly spread, and the outline of its sound.

Does: read a finished file once, hold the chosen frames and two numbers a column and channel, whatever its length. Does
not: draw. Fed with any clip that PyAV reads; `contact_sheet` draws it.

    frames     indices round(i (F - 1) / (n - 1)): the first and the last are always among them
    envelope   the sound from the first picture on, as least and greatest value [C, columns] of equal spans of the time
               that the pictures take; a column without a sample is 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h3runtime.errors import bad_media
from h3runtime.media.clip_stream import PictureOutline, SoundOutline, each_block, outline
from h3runtime.media.probe import opened, to_rgb

Pictures = tuple[NDArray[np.uint8], ...]
Levels = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SoundSketch:
    """least, greatest: float32 [C, columns], full scale is 1."""

    rate: int
    least: Levels
    greatest: Levels

    @property
    def peak(self) -> float:
        return float(max(self.greatest.max(initial=0), -self.least.min(initial=0)))


@dataclass(frozen=True, slots=True, eq=False)
class ClipSketch:
    """frames: how many the clip has. indices: those of the pictures, uint8 [H, W, 3] each. sound: None for a clip
    without."""

    width: int
    height: int
    frames: int
    rate: Fraction
    indices: tuple[int, ...]
    pictures: Pictures
    sound: SoundSketch | None

    @property
    def seconds(self) -> float:
        return float(self.frames / self.rate)


def sketch_clip(path: Path, count: Callable[[float], int], columns: int, field: str = "clip") -> ClipSketch:
    """count: how many pictures are wanted of a clip of this width over height. `BadMedia` naming `field` for a file
    that has no pictures or can't be decoded."""
    seen = outline(path, field)
    if seen.pictures is None or not seen.pictures.rate:
        raise bad_media(field, "it has no pictures, or none of a known rate", "a clip with pictures")
    shape = seen.pictures
    indices = spread(shape.frames, count(shape.width / shape.height))
    pictures = _pictures_at(path, indices, field)
    sound = _sound(path, shape, seen.sound, columns, field) if seen.sound else None
    return ClipSketch(shape.width, shape.height, shape.frames, shape.rate, indices, pictures, sound)


def spread(frames: int, count: int) -> tuple[int, ...]:
    """At most `count` indices of 0..frames-1, evenly spread, ends included (the first alone if one is wanted)."""
    count = min(frames, count)
    return tuple(round(i * (frames - 1) / max(count - 1, 1)) for i in range(count))


def _pictures_at(path: Path, indices: tuple[int, ...], field: str) -> Pictures:
    wanted = frozenset(indices)
    with opened(path, field) as container:
        decoded = enumerate(container.decode(container.streams.video[0]))
        found = tuple(to_rgb(frame) for index, frame in decoded if index in wanted)
    if len(found) != len(indices):
        raise bad_media(field, "it has fewer pictures than packets", "a whole clip")
    return found


def _sound(path: Path, shape: PictureOutline, heard: SoundOutline, columns: int, field: str) -> SoundSketch:
    """Samples of column c are [edges[c], edges[c + 1])."""
    total = float(shape.frames / shape.rate) * heard.rate
    edges = np.round(np.arange(columns + 1) * (total / columns)).astype(np.int64)
    least = np.zeros((heard.channels, columns), np.float32)
    greatest = least.copy()
    begin = 0
    for block in each_block(path, field, shape.start):
        _take(block, begin, edges, least, greatest)
        begin += block.shape[1]
    return SoundSketch(heard.rate, least, greatest)


def _take(block: Levels, begin: int, edges: NDArray[np.int64], least: Levels, greatest: Levels) -> None:
    """Zero is always between the two: sound swings about it."""
    last = len(edges) - 2
    first = int(np.clip(np.searchsorted(edges, begin, "right") - 1, 0, last))
    after = int(np.clip(np.searchsorted(edges, begin + block.shape[1], "left"), 0, last + 1))
    bounds = np.clip(edges[first : after + 1] - begin, 0, block.shape[1])
    for column, (start, stop) in enumerate(pairwise(bounds.tolist()), first):
        if stop > start:
            part = block[:, start:stop]
            least[:, column] = np.minimum(least[:, column], part.min(1))
            greatest[:, column] = np.maximum(greatest[:, column], part.max(1))
