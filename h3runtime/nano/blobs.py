"""Frames of the little world taken apart: the colour of its floor, and every connected patch that is not backdrop.

    frames uint8 [F, H, W, 3] -> working size -> backdrop: a colour for every row -> contrast against it -> blobs

A blob's centre, area and outline are sums over a soft cover (how far a pixel's colour is on the way from the backdrop's
to the object's), so that neither blur nor noise moves them. Knows nothing of time, palettes and shapes. Fed by
`seeing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from h3runtime.nano.outlines import sampling_grid
from h3runtime.nano.world import FLOOR_LINE

Pixels = NDArray[np.float32]
"""Of 0..255."""
Box = tuple[slice, ...]

WORKING_SIDE: Final = 96
"""Frames are averaged down by whole factors while their short side stays at least this."""
CONTRAST: Final = 45.0
"""Distance from the backdrop, of 255, that makes an object's pixel."""
CORE_CONTRAST: Final = 75.0
"""The same of an object's core: the world's least pair of colours is 100 apart, and ghosts are paler."""
LEAST_AREA: Final = 0.004
"""Of a blob, in squares of the short side; the smallest of the world has 0.0075."""
CROWD: Final = 8
"""At most so many objects of a frame are told apart."""
MARGIN: Final = 3
"""Pixels around a patch that may hold its soft edge."""


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """An object in one frame, in pixels of the working size. colour: 0..255. contrast: of its core.

    cover: on the grid of `outlines`. whole: not cut by an edge of the frame.
    """

    frame: int
    x: float
    y: float
    area: float
    colour: Pixels
    contrast: float
    cover: Pixels
    whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Frames against their backdrop. rows [H, 1, 3]: its colours. offsets [F, H, W, 3]: pixels less backdrop.

    contrast [F, H, W]: their length. labels [F, H, W]: number of the patch that a pixel is in, 0 for none.
    """

    floor: Pixels
    rows: Pixels
    offsets: Pixels
    contrast: Pixels
    labels: NDArray[np.signedinteger]

    @property
    def shape(self) -> tuple[int, int, int]:
        """F, H, W of the working size."""
        frames, height, width = self.contrast.shape
        return frames, height, width


def reduced(frames: NDArray[np.uint8] | Pixels) -> Pixels:
    """Frames [F, H, W, 3] averaged down to the working size; those that have it stay as they are."""
    height, width = frames.shape[1:3]
    by = max(1, min(height, width) // WORKING_SIDE)
    if by == 1:
        return frames.astype(np.float32)
    cut = frames[:, : height // by * by, : width // by * by]
    parts = [cut[:, i::by, j::by].astype(np.float32) for i in range(by) for j in range(by)]
    return np.asarray(sum(parts) / (by * by), np.float32)


def stage_of(pictures: Pixels) -> Stage:
    """Pictures of the working size taken apart."""
    floor, rows = _backdrop(pictures)
    offsets = pictures - rows
    contrast = np.sqrt(np.einsum("fhwc,fhwc->fhw", offsets, offsets))
    within_frames = np.zeros((3, 3, 3), bool)
    within_frames[1] = True
    labels, _ = ndimage.label(ndimage.uniform_filter(contrast, (0, 3, 3)) > CONTRAST, within_frames)
    return Stage(floor, rows, offsets, contrast, labels)


def blobs_of(stage: Stage) -> list[Blob]:
    """Every patch that is large and strong enough, in no order."""
    least = LEAST_AREA * min(stage.shape[1:]) ** 2
    boxes = _largest(ndimage.find_objects(stage.labels), least)
    blobs = [_blob(stage, label, box) for label, box in boxes]
    return [blob for blob in blobs if blob.area >= least and blob.contrast >= CORE_CONTRAST]


def _backdrop(pictures: Pixels) -> tuple[Pixels, Pixels]:
    """The floor's colour [3], and the backdrop's in every row [H, 1, 3].

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
    return floor, rows[:, None]


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


def _blob(stage: Stage, label: int, box: Box) -> Blob:
    at, rows, columns = box
    top, left = max(0, rows.start - MARGIN), max(0, columns.start - MARGIN)
    crop = at.start, slice(top, rows.stop + MARGIN), slice(left, columns.stop + MARGIN)
    labels, backdrop, offsets = stage.labels[crop], stage.rows[crop[1]], stage.offsets[crop]
    core = _core(labels == label, stage.contrast[crop])
    colour = (offsets + backdrop)[core].mean(0)
    cover = _cover(offsets, colour - backdrop) * _around(labels, label)
    area = max(float(cover.sum()), 1.0)
    y = float(cover.sum(1) @ np.arange(cover.shape[0])) / area
    x = float(cover.sum(0) @ np.arange(cover.shape[1])) / area
    return Blob(
        frame=at.start,
        x=x + left + 0.5,
        y=y + top + 0.5,
        area=area,
        colour=colour,
        contrast=float(stage.contrast[crop][core].mean()),
        cover=_sampled(cover, y, x, area),
        whole=min(rows.start, columns.start) > 0 and rows.stop < stage.shape[1] and columns.stop < stage.shape[2],
    )


def _core(inside: NDArray[np.bool_], strength: Pixels) -> NDArray[np.bool_]:
    """A patch's strongest third, which no blurred edge reaches."""
    strengths = strength[inside]
    third = len(strengths) * 2 // 3
    core: NDArray[np.bool_] = inside & (strength >= np.partition(strengths, third)[third])
    return core


def _cover(offsets: Pixels, way: Pixels) -> Pixels:
    """How far along `way` [h, 1, 3], from the backdrop's to the object's colour, each pixel is: [h, w], about 0..1."""
    along = np.einsum("hwc,hwc->hw", offsets, np.broadcast_to(way, offsets.shape))
    cover: Pixels = np.clip(along / np.maximum(np.square(way).sum(-1), 1.0), -0.3, 1.3)
    return cover


def _around(labels: NDArray[np.signedinteger], label: int) -> NDArray[np.bool_]:
    """A patch and its soft edge, without other patches."""
    inside = labels == label
    around: NDArray[np.bool_] = ndimage.binary_dilation(inside, iterations=2) & (inside | (labels == 0))
    return around


def _sampled(cover: Pixels, y: float, x: float, area: float) -> Pixels:
    """A cover on the grid of `outlines`, centred and scaled."""
    at = sampling_grid() * np.sqrt(area) + np.array([y, x])[:, None, None]
    sampled: Pixels = ndimage.map_coordinates(cover, at, np.float32, order=1, mode="constant")
    return sampled
