"""What an object does over a clip, from where it was seen: a word for its motion, and the times of its impacts.

Knows nothing of pixels and of scenes. Fed by `seeing` with paths in shares of the canvas.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, signal

from h3runtime.core import FPS

EDGE: Final = 0.15
"""A path that begins later than this share of the clip appears; one that ends as early before the end vanishes."""
TURN: Final = 0.15
"""Rise and fall of at least this share of the height each make a bounce; the world's are of 0.42 and more."""
STEP: Final = 0.15
"""A way of at least this share of the canvas is a motion."""
GROWTH: Final = 0.3
"""Change of the log of the size; the world's is 0.98."""


def motion_of(x: NDArray[np.float64], y: NDArray[np.float64], size: NDArray[np.float64]) -> str:
    """The motion of a path, each [F], NaN where the object wasn't seen: one of `world.MOTIONS`, or `vanish`."""
    seen = np.flatnonzero(~np.isnan(x))
    if seen[0] > EDGE * len(x):
        return "appear"
    if seen[-1] < (1 - EDGE) * (len(x) - 1):
        return "vanish"
    x, y, size = x[seen], y[seen], size[seen]
    if min(_climb(y), _climb(-y)) > TURN:
        return "bounce"
    across, down = _change(x), _change(y)
    if max(abs(across), abs(down)) > STEP:
        if abs(across) > abs(down):
            return "right" if across > 0 else "left"
        return "down" if down > 0 else "up"
    growth = _change(np.log(size))
    if abs(growth) > GROWTH:
        return "grow" if growth > 0 else "shrink"
    return "still"


def impacts_of(y: NDArray[np.float64]) -> tuple[float, ...]:
    """Seconds at which a bouncing object was lowest. y [F], NaN where it wasn't seen.

    Between frames by the meeting point of two slopes of equal steepness, since an impact is a corner of the path. Those
    before the first and after the last frame but one can't be seen.
    """
    frames = np.arange(len(y))
    seen = ~np.isnan(y)
    if seen.sum() < 3:
        return ()
    whole = np.interp(frames, frames[seen], y[seen])
    tops, _ = signal.find_peaks(whole, prominence=TURN / 2)
    return tuple(float(k + _corner(whole[k - 1 : k + 2])) / FPS for k in tops)


def _corner(y: NDArray[np.float64]) -> float:
    """Frames from the middle one of three to the corner between them."""
    rise, fall = y[1] - y[0], y[1] - y[2]
    return float((rise - fall) / (2 * max(rise, fall, 1e-9)))


def _climb(values: NDArray[np.float64]) -> float:
    """The largest rise from any point to a later one, of the path without its jitter."""
    smooth = ndimage.median_filter(values, 3, mode="nearest") if len(values) > 4 else values
    return float((smooth - np.minimum.accumulate(smooth)).max())


def _change(values: NDArray[np.float64]) -> float:
    """From the first fifth's mean to the last fifth's, as if the path went on to both ends evenly."""
    part = max(1, len(values) // 5)
    return float(values[-part:].mean() - values[:part].mean()) * len(values) / max(1, len(values) - part)
