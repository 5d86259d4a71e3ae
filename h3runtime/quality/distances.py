"""How far a clip is from the exact one: SSIM of its pictures and the log-mel distance of its sound.

Both as performance.md defines them, but that pictures here are every third frame: `calibrate`, which counts them all,
has SSIM where its frames are (`cli.calibration.similarity`). `media` has both for one picture and for a stream. Fed by
the benchmarks, and by `calibrate` with sounds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import SAMPLE_RATE
from h3runtime.media.log_mel import LogMelDistance
from h3runtime.media.similarity import ssim

FRAMES_APART: Final = 3
"""SSIM of a frame takes as long as decoding it, and neighbours hardly differ in it."""


def clip_ssim(exact: NDArray[np.uint8], made: NDArray[np.uint8]) -> float:
    """uint8 [F, H, W, 3] twice -> mean over every third frame."""
    pairs = zip(exact[::FRAMES_APART], made[::FRAMES_APART], strict=True)
    return float(np.mean([ssim(*pair) for pair in pairs]))


def sound_distance(exact: NDArray[np.float32], made: NDArray[np.float32]) -> float:
    """float32 [2, n] twice at 32 kHz -> dB."""
    sounds = LogMelDistance(SAMPLE_RATE)
    sounds.feed(exact, made)
    return sounds.finish()
