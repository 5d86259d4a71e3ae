"""What a clip is compared by: its latents, and its pictures and sound as arrays. Made by `making`, read by `trials`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import Latents


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """frames: uint8 [F, H, W, 3]. samples: float32 [2, n] at 32 kHz, as they would be encoded."""

    frames: NDArray[np.uint8]
    samples: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """seconds: of sampling alone."""

    latents: Latents
    seconds: float
    forwards: int
    skipped_steps: int
