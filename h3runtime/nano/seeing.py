"""What is to be seen in a clip of the little world, from its pixels alone: no scene, no learned model.

    frames uint8 [F, H, W, 3]
      -> `blobs`: the floor's colour, and the patches of every frame
      -> paths: blobs linked from frame to frame -> objects: colour, shape (`outlines`), motion, impacts (`moving`)

Objects that live shorter than a quarter of the clip, or are smaller than the world's smallest, are not counted. Fed by
`judge` and by tests; knows `world` for its palettes only.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from h3runtime.nano.blobs import Blob, Pixels, blobs_of, reduced, stage_of
from h3runtime.nano.moving import impacts_of, motion_of
from h3runtime.nano.outlines import nearest_shape
from h3runtime.nano.world import COLOURS, FLOORS, RGB

Picture = NDArray[np.uint8]

LEAST_LIFE: Final = 0.25
UNCLEAR: Final = 0.25
"""An outline further than this from every shape has none; rendered ones are within 0.02, a 4:3 ellipse is at 0.12."""
COLOURLESS: Final = 0.28
"""Saturation below which a colour is white, or a floor grey."""
LEAP: Final = 0.6
"""The most a blob may differ from the last one of its path: short sides moved plus colour changed, of 255."""
COVERS: Final = 12
"""So many of a path's frames, the largest, give its outline."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """One object. x, y: its centre in shares of the canvas, size: sqrt(area) in shares of the short side, float64 [F],
    NaN where it isn't seen. motion: of `world.MOTIONS` or `vanish`. shape: of `world.SHAPES` or `unclear`.
    impacts: seconds, of a bounce."""

    colour: str
    shape: str
    motion: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    size: NDArray[np.float64]
    impacts: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sights:
    """The floor's colour of `world.FLOORS` and the objects, from left to right."""

    floor: str
    objects: tuple[Sight, ...]

    @property
    def count(self) -> int:
        return len(self.objects)


def look(frames: Picture | Pixels) -> Sights:
    """Everything that is to be seen in uint8 [F, H, W, 3], or in what `reduced` makes of it."""
    stage = stage_of(reduced(frames))
    count, height, width = stage.shape
    paths = _paths(blobs_of(stage), count, min(height, width))
    sights = [_sight(path, count, width, height) for path in paths]
    return Sights(named(stage.floor, FLOORS), tuple(sorted(sights, key=lambda sight: float(np.nanmean(sight.x)))))


def objects_match(frames: Picture, colour: str, shape: str) -> bool:
    """Whether an object of this colour and shape is to be seen in uint8 [F, H, W, 3]."""
    return any(sight.colour == colour and sight.shape == shape for sight in look(frames).objects)


def named(colour: NDArray[np.float32], palette: Mapping[str, RGB]) -> str:
    """The palette's colour of nearest hue; its colourless one for a colour of little saturation."""
    hue, saturation, _ = colorsys.rgb_to_hsv(*(float(np.clip(c, 0, 255)) / 255 for c in colour))
    entries = {name: colorsys.rgb_to_hsv(*(c / 255 for c in rgb)) for name, rgb in palette.items()}
    grey = [name for name, entry in entries.items() if entry[1] < COLOURLESS]
    if saturation < COLOURLESS and grey:
        return grey[0]
    vivid = {name: entry[0] for name, entry in entries.items() if name not in grey}
    return min(vivid, key=lambda name: abs((vivid[name] - hue + 0.5) % 1 - 0.5))


def _paths(blobs: Sequence[Blob], frames: int, short: int) -> list[list[Blob]]:
    """Blobs linked from frame to frame to the path whose last one is nearest; those that live long enough."""
    paths: list[list[Blob]] = []
    for frame in range(frames):
        now = [blob for blob in blobs if blob.frame == frame]
        taken = _link(paths, now, short)
        paths.extend([blob] for blob in now if id(blob) not in taken)
    return [path for path in paths if len(path) >= max(min(2, frames), LEAST_LIFE * frames)]


def _link(paths: list[list[Blob]], now: Sequence[Blob], short: int) -> set[int]:
    """Append each of `now` that continues a path, and say which did."""
    if not paths or not now:
        return set()
    leaps = np.array([[_leap(path[-1], blob, short) for blob in now] for path in paths])
    taken: set[int] = set()
    rows, columns = optimize.linear_sum_assignment(np.minimum(leaps, 10 * LEAP))
    for path, blob in zip(rows.tolist(), columns.tolist(), strict=True):
        if leaps[path, blob] < LEAP:
            paths[path].append(now[blob])
            taken.add(id(now[blob]))
    return taken


def _leap(last: Blob, blob: Blob, short: int) -> float:
    way = float(np.hypot(blob.x - last.x, blob.y - last.y)) / short
    return way + float(np.linalg.norm(blob.colour - last.colour)) / 255


def _sight(path: Sequence[Blob], frames: int, width: int, height: int) -> Sight:
    at = [blob.frame for blob in path]
    x, y, size = (np.full(frames, np.nan) for _ in range(3))
    x[at], y[at] = [blob.x / width for blob in path], [blob.y / height for blob in path]
    size[at] = [np.sqrt(blob.area) / min(width, height) for blob in path]
    motion = motion_of(x, y, size)
    impacts = impacts_of(y) if motion == "bounce" else ()
    return Sight(_colour(path), _shape(path), motion, x, y, size, impacts)


def _colour(path: Sequence[Blob]) -> str:
    weights = [blob.area for blob in path]
    return named(np.average([blob.colour for blob in path], 0, weights), COLOURS)


def _shape(path: Sequence[Blob]) -> str:
    whole = [blob for blob in path if blob.whole] or path
    largest = sorted(whole, key=lambda blob: -blob.area)[:COVERS]
    cover = np.average([blob.cover for blob in largest], 0, [blob.area for blob in largest])
    shape, distance = nearest_shape(cover)
    return shape if distance < UNCLEAR else "unclear"
