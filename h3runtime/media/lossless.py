"""The end of a clip kept without loss: FFV1 pictures and float samples in Matroska, as `clip_frames` and
`read_sound_in` read them back bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class LosslessWriter:
    """Frames of `width` x `height` at 24 fps beside `waveform`, float32 [2, n] at 32 kHz."""

    def __init__(self, path: Path, width: int, height: int, waveform: NDArray[np.float32]) -> None:
        raise NotImplementedError

    def put(self, frames: NDArray[np.uint8]) -> None:
        """uint8 [n, H, W, 3]."""
        raise NotImplementedError

    def finish(self) -> None:
        """Give the whole file its name."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Leave nothing; harmless after `finish`."""
        raise NotImplementedError
