"""What is to be seen in a clip of the little world, from its pixels alone: no scene, no learned model.

    frames uint8 [F, H, W, 3]
      -> backdrop: floor and wall, each one colour, and the rows where they meet
      -> contrast against it -> connected blobs of every frame: centre, area, colour, cover
      -> paths: blobs linked from frame to frame -> objects: colour, shape, motion, impacts

Centre, area and cover are sums over a soft cover (how far a pixel's colour is from the backdrop's to the object's), so
that neither blur nor noise moves them. Objects that live shorter than a quarter of the clip, or are smaller than the
world's smallest, are not counted. Fed by `judge` and by tests; knows `world` for its palettes only.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, optimize

from h3runtime.nano.moving import impacts_of, motion_of
from h3runtime.nano.outlines import GRID, nearest_shape, sampling_grid
from h3runtime.nano.world import COLOURS, FLOOR_LINE, FLOORS, RGB

Picture = NDArray[np.uint8]
Box = tuple[slice, ...]

WORKING_SIDE: Final = 96
"""Frames are averaged down by whole factors while their short side stays at least this."""
CONTRAST: Final = 45.0
"""Distance from the backdrop, of 255, that makes an object's pixel; the least pair of the world has 100."""
LEAST_AREA: Final = 0.004
"""Of a blob, in squares of the short side; the smallest of the world has 0.0075."""
LEAST_LIFE: Final = 0.25
UNCLEAR: Final = 0.35
"""An outline further than this from every shape has none."""
COLOURLESS: Final = 0.28
"""Saturation below which a colour is white, or a floor grey."""
LEAP: Final = 0.6
"""The most a blob may differ from the last one of its path: short sides moved plus colour changed, of 255."""
CROWD: Final = 8
"""At most so many objects are told apart."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """An object in one frame, in pixels of the working size. cover: `outlines`' grid. whole: not cut by an edge."""

    frame: int
    x: float
    y: float
    area: float
    colour: NDArray[np.float32]
    cover: NDArray[np.float32]
    whole: bool


def look(frames: Picture) -> Sights:
    """Everything that is to be seen in uint8 [F, H, W, 3]."""
    pictures = _reduced(frames)
    floor, rows = _backdrop(pictures)
    short = min(pictures.shape[1:3])
    paths = _paths(_blobs(pictures, rows), len(pictures), short)
    height, width = pictures.shape[1:3]
    sights = [_sight(path, len(pictures), width, height) for path in paths]
    return Sights(floor, tuple(sorted(sights, key=lambda sight: float(np.nanmean(sight.x)))))


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


def _reduced(frames: Picture) -> NDArray[np.float32]:
    """Float frames of 0..255, averaged down to the working size."""
    height, width = frames.shape[1:3]
    by = max(1, min(height, width) // WORKING_SIDE)
    if by == 1:
        return frames.astype(np.float32)
    cut = frames[:, : height // by * by, : width // by * by]
    parts = [cut[:, i::by, j::by].astype(np.float32) for i in range(by) for j in range(by)]
    return np.asarray(sum(parts) / (by * by), np.float32)


def _backdrop(pictures: NDArray[np.float32]) -> tuple[str, NDArray[np.float32]]:
    """The floor's name, and the backdrop's colour in every row [H, 3].

    Floor and wall by the median over all frames of what objects hardly cover: the lowest rows, and all rows of wall.
    Only where the two meet, a row's own median counts, of the outermost columns.
    """
    height, width = pictures.shape[1:3]
    line = FLOOR_LINE * height
    floor = np.median(pictures[:, int(0.92 * height) :, ::2].reshape(-1, 3), 0)
    wall = np.median(pictures[:, : int(line) - 3 : 3, ::3].reshape(-1, 3), 0)
    rows = np.where((np.arange(height) + 0.5 < line)[:, None], wall, floor).astype(np.float32)
    edge = max(2, width // 40)
    near = slice(int(line) - 3, int(line) + 4)
    sides = np.concatenate([pictures[:, near, :edge], pictures[:, near, -edge:]], 2)
    rows[near] = np.median(sides, (0, 2))
    return named(floor, FLOORS), rows


def _blobs(pictures: NDArray[np.float32], rows: NDArray[np.float32]) -> list[Blob]:
    """Every connected patch of contrast, of every frame."""
    offsets = pictures - rows[None, :, None]
    contrast = np.sqrt(np.einsum("fhwc,fhwc->fhw", offsets, offsets))
    smooth = ndimage.uniform_filter(contrast, (0, 3, 3))
    within_frames = np.zeros((3, 3, 3), bool)
    within_frames[1] = True
    labels, _ = ndimage.label(smooth > CONTRAST, within_frames)
    least = LEAST_AREA * min(pictures.shape[1:3]) ** 2
    found: list[Blob] = []
    for label, box in _largest(ndimage.find_objects(labels), least):
        blob = _blob(label, box, offsets, rows, contrast, labels)
        if blob.area >= least:
            found.append(blob)
    return found


def _largest(boxes: Sequence[Box], least: float) -> list[tuple[int, Box]]:
    """Labels and boxes of at least so many pixels: the `CROWD` largest of each frame, for noise has thousands."""
    sized = [((y.stop - y.start) * (x.stop - x.start), at.start, label) for label, (at, y, x) in enumerate(boxes, 1)]
    kept: list[tuple[int, Box]] = []
    met: dict[int, int] = {}
    for size, frame, label in sorted(sized, reverse=True):
        met[frame] = met.get(frame, 0) + 1
        if size >= least and met[frame] <= CROWD:
            kept.append((label, boxes[label - 1]))
    return kept


def _blob(
    label: int,
    box: Box,
    offsets: NDArray[np.float32],
    rows: NDArray[np.float32],
    contrast: NDArray[np.float32],
    labels: NDArray[np.signedinteger],
) -> Blob:
    frame, height, width = box[0].start, *offsets.shape[1:3]
    top, left = max(0, box[1].start - 3), max(0, box[2].start - 3)
    crop = frame, slice(top, box[1].stop + 3), slice(left, box[2].stop + 3)
    inside = labels[crop] == label
    colour = _core(inside, contrast[crop], offsets[crop] + rows[crop[1], None])
    way = colour - rows[crop[1], None]
    cover = np.einsum("hwc,hwc->hw", offsets[crop], np.broadcast_to(way, offsets[crop].shape))
    cover /= np.maximum(np.einsum("hwc,hwc->hw", way, way), 1.0)
    own = ndimage.binary_dilation(inside, iterations=2) & (inside | (labels[crop] == 0))
    cover = np.clip(cover, -0.3, 1.3) * own
    area = max(float(cover.sum()), 1.0)
    y = float(cover.sum(1) @ np.arange(cover.shape[0])) / area
    x = float(cover.sum(0) @ np.arange(cover.shape[1])) / area
    whole = box[1].start > 0 and box[2].start > 0 and box[1].stop < height and box[2].stop < width
    at = sampling_grid() * np.sqrt(area) + np.array([y, x])[:, None, None]
    sampled = ndimage.map_coordinates(cover, at, np.float32, order=1, mode="constant")
    return Blob(frame, x + left + 0.5, y + top + 0.5, area, colour, sampled, whole)


def _core(inside: NDArray[np.bool_], strength: NDArray[np.float32], pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean colour of a blob's strongest third, which no blurred edge reaches."""
    strengths = strength[inside]
    third = len(strengths) * 2 // 3
    core: NDArray[np.float32] = pixels[inside & (strength >= np.partition(strengths, third)[third])].mean(0)
    return core


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
    assert cover.shape == (GRID, GRID)
    shape, distance = nearest_shape(cover)
    return shape if distance < UNCLEAR else "unclear"
