"""How many steps a schedule is likely to reuse, told before the run: for estimates of time, not for a promise.

Between two steps the latents go straight from noise to data: x = sigma n + (1 - sigma) d. With independent n of spread
1 and d of spread s, the relative change that a step sees is

    |sigma' - sigma| sqrt(1 + s^2) / sqrt(sigma^2 + (1 - sigma)^2 s^2)           each stream on its own sigma

which `rule` is asked with, as in a run. What the first block makes can't be foretold, so `first_block` is told to reuse
nothing. Fed by `engine.demand`; no tensor of latents.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

from h3runtime.core import SamplerSettings, StepReuse
from h3runtime.denoiser.reuse.rule import Change, Rule, Window
from h3runtime.denoiser.schedule import sigmas, timesteps

PICTURE_SPREAD: Final = 0.6
SOUND_SPREAD: Final = 0.8
"""Of what the runs seem to go to, fitted to the changes that h3-nano's runs saw: within 10 % of them from a fifth of a
run on. An estimate of the clean latents is smoother than they are, so both are below 1."""


def likely_skips(sampling: SamplerSettings, reuse: StepReuse | None) -> int:
    """Steps of a run that are likely to be reused. InvalidRequest for an illegal schedule."""
    if reuse is None or reuse.mode == "first_block":
        return 0
    visited = sigmas(sampling).tolist()[:-1]
    window, rule = Window.of(reuse, sampling.shift), Rule.of(reuse)
    skipped = 0
    for before, sigma in pairwise(visited):
        if window.holds(sigma) and rule.allows(_change(before, sigma, sampling)):
            skipped += 1
        else:
            rule.computed()
    return skipped


def _change(before: float, sigma: float, sampling: SamplerSettings) -> Change:
    then, now = (timesteps(s, sampling.shift, sampling.audio_shift) for s in (before, sigma))
    return (
        _moved(then.sigma_video, now.sigma_video, PICTURE_SPREAD),
        _moved(then.sigma_audio, now.sigma_audio, SOUND_SPREAD),
    )


def _moved(before: float, sigma: float, spread: float) -> float:
    return abs(sigma - before) * math.hypot(1.0, spread) / math.hypot(before, (1.0 - before) * spread)
