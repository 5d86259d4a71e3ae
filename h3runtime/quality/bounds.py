"""What a sample of clips says of the mean of all: the bootstrap's 95 % bound on one side.

    figures [P, N]      N seeds of each of P prompts
    resample            P prompts with replacement, each with all its seeds: clips of one prompt are alike, so that they
                        aren't N samples of their own
    bound               the 5th percentile of the means of 10,000 resamples (percentile method), or the 95th

The generator is seeded: the same figures always give the same bound. numpy only; fed by `calibrate`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95
SEED: Final = 8


def lower_bound(figures: ArrayLike) -> float:
    """Figures [P, N], all finite -> what their mean is above, with 95 % confidence. One prompt is its own bound."""
    return float(np.quantile(_means(figures), 1 - CONFIDENCE))


def upper_bound(figures: ArrayLike) -> float:
    """What the mean is below, likewise."""
    return float(np.quantile(_means(figures), CONFIDENCE))


def _means(figures: ArrayLike) -> np.ndarray:
    by_prompt = np.asarray(figures, np.float64).mean(axis=1)
    drawn = np.random.default_rng(SEED).integers(len(by_prompt), size=(RESAMPLES, len(by_prompt)))
    return np.asarray(by_prompt[drawn].mean(axis=1))
