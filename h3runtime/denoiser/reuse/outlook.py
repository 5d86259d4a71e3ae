"""How many steps a schedule is likely to reuse, told before the run: for estimates of time, not for a promise.

What velocities change by depends on the clip: of h3-nano's, one step's change is up to five times another's of the same
schedule. On average it goes with the base of the schedule, whatever the number of steps:

    a step from sigma to sigma' changes the velocities by CHANGE |base(sigma) - base(sigma')|      base: unshifted

which `rule` is asked with, as in a run. What the first block makes can't be foretold, so `first_block` is told to reuse
nothing. Fed by `engine.demand`; no tensor of latents.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from h3runtime.core import SamplerSettings, StepReuse
from h3runtime.denoiser.reuse.rule import Rule, Window
from h3runtime.denoiser.schedule import sigmas, unshift

CHANGE: Final = 0.9
"""Of the picture's velocities over a whole run: with it the steps told are within one of the mean of h3-nano's runs of
12 and of 20 steps with `easycache` at 0.1 to 0.3; with `h3_cache`, which looks at single steps, within four. A sound's
changes are a third of that and decide nothing."""
COMPUTED: Final = 2
"""Steps that must be computed before any change is known."""


def likely_skips(sampling: SamplerSettings, reuse: StepReuse | None) -> int:
    """Steps of a run that are likely to be reused. InvalidRequest for an illegal schedule."""
    if reuse is None or reuse.mode == "first_block":
        return 0
    visited = sigmas(sampling).tolist()[:-1]
    window, rule = Window.of(reuse, sampling.shift), Rule.of(reuse)
    skipped = 0
    for index, (before, sigma) in enumerate(pairwise(visited), 1):
        change = CHANGE * abs(unshift(sigma, sampling.shift) - unshift(before, sampling.shift))
        if index >= COMPUTED and window.holds(sigma) and rule.allows((change, 0.0)):
            skipped += 1
        else:
            rule.computed()
    return skipped
