"""Pictures of a clip on the 24 fps clock, upright and fitted to a canvas, one at a time."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import ClipInput, Fit


def clip_frames(clip: ClipInput, width: int, height: int, fit: Fit) -> Generator[NDArray[np.uint8], None, None]:
    """uint8 [height, width, 3], `clip.frames` times. `BadMedia` naming the field if the file can't deliver them."""
    raise NotImplementedError
    yield
