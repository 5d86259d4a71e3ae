"""How large Qwen sees a picture, by ComfyUI's smart resize in whole numbers, and which frames of a clip it sees
(conditioning contract §1.9, §1.10).

Pictures on a canvas are multiples of 32 within the limits and keep their size; others come here off the grid. Touches
no pixel. Read by `conditioning`, which shows the pictures, and by `packing.rows`, which counts their rows beforehand:
it lies below both, since they may not import each other.
"""

from __future__ import annotations

from math import ceil, floor, sqrt

PATCH = 16
"""Pixels on a patch's side."""
MERGE = 2
"""Patches on the side of the square that becomes one feature."""
FRAMES = 2
"""Frames in a patch; a still picture is doubled."""
SAMPLE_EVERY = 12
"""Frames of a clip from one that Qwen sees to the next: 2 a second (conditioning contract §1.10)."""
FACTOR = PATCH * MERGE
MIN_PIXELS = 3_136
MAX_PIXELS = 12_845_056
"""ComfyUI's limits, the same for a still picture and for each pair of frames (conditioning contract §1.9)."""

Grid = tuple[int, int]
"""Patches (gh, gw) of one block, both even."""


def smart_resize(height: int, width: int) -> tuple[int, int]:
    """The size (height, width) in pixels, both multiples of 32, that a picture of `height` x `width` is resized to."""
    # Half to even; an axis of 16 px or less rounds to 0 and is lifted by the minimum.
    resized = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if resized[0] * resized[1] > MAX_PIXELS:
        shrink = sqrt(height * width / MAX_PIXELS)
        return max(FACTOR, _floor(height / shrink)), max(FACTOR, _floor(width / shrink))
    if resized[0] * resized[1] < MIN_PIXELS:
        grow = sqrt(MIN_PIXELS / (height * width))
        return _ceil(height * grow), _ceil(width * grow)
    return resized


def patch_grid(height: int, width: int) -> Grid:
    """The patch grid (gh, gw) of a picture of `height` x `width` pixels before resizing."""
    resized_height, resized_width = smart_resize(height, width)
    return resized_height // PATCH, resized_width // PATCH


def features_of(grid: Grid) -> int:
    """Presentation rows between the two markers of a block of `grid`."""
    return grid[0] * grid[1] // MERGE**2


def _floor(pixels: float) -> int:
    return floor(pixels / FACTOR) * FACTOR


def _ceil(pixels: float) -> int:
    return ceil(pixels / FACTOR) * FACTOR
