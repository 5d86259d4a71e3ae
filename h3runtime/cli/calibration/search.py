"""The fastest choice that keeps a level's promise: every dense one, then reuse on the fastest of these.

    bases       each linear with each attention that the level may take
    reuse       on the fastest base that passes, each cache mode with the widest threshold that passes: found by
                halving the span between a tenth and ten times the mode's default on a logarithmic scale
    the answer  whatever passes in the least time

Wider thresholds reuse more steps and are further off, so halving finds the edge up to 1.33 times after four rounds;
what is returned was measured and passed itself. Pure: `attempt` does the work. Fed by `calibrate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from h3runtime.cli.calibration.trials import Outcome
from h3runtime.core import REUSE_THRESHOLDS, CacheMode
from h3runtime.quality.levels import Choice, Level

SPAN = 10.0
ROUNDS = 4

Attempt = Callable[[Choice, float], Outcome]
"""A choice, and seconds a clip above which nobody wants it."""


def fastest(level: Level, bases: Sequence[Choice], attempt: Attempt) -> Outcome | None:
    """None if nothing keeps the promise."""
    passed: list[Outcome] = []
    for base in bases:
        least = min((outcome.seconds for outcome in passed), default=math.inf)
        if (outcome := attempt(base, least)).meets(level):
            passed.append(outcome)
    if passed and level.reuse:
        base = _least_time(passed).choice
        widest = (widest_threshold(level, replace(base, cache_mode=mode), mode, attempt) for mode in level.reuse)
        passed += [outcome for outcome in widest if outcome is not None]
    return _least_time(passed) if passed else None


def widest_threshold(level: Level, base: Choice, mode: CacheMode, attempt: Attempt) -> Outcome | None:
    """Of a cache mode on top of `base`; None if even narrow ones cost too much."""
    default = REUSE_THRESHOLDS[mode]
    low, high = default / SPAN, default * SPAN
    best = attempt(replace(base, cache_threshold=_rounded(high)), math.inf)
    if best.meets(level):
        return best
    found = None
    for _ in range(ROUNDS):
        middle = _rounded(math.sqrt(low * high))
        outcome = attempt(replace(base, cache_threshold=middle), math.inf)
        if outcome.meets(level):
            found, low = outcome, middle
        else:
            high = middle
    return found


def _least_time(outcomes: Sequence[Outcome]) -> Outcome:
    return min(outcomes, key=lambda outcome: outcome.seconds)


def _rounded(threshold: float) -> float:
    """Three digits: what a person can type."""
    return float(f"{threshold:.3g}")
