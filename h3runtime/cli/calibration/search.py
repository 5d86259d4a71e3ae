"""The fastest choice that keeps a level's promise: every dense one, then reuse on the fastest of these.

    bases       each linear with each attention that the level may take
    reuse       on the fastest base that passes, each cache mode with the widest threshold that passes: down from the
                widest that a request may name, by half a decade each time, until one does; then once more halfway up
    the answer  of all that passed, what takes the least time where they are timed in turn

Wider thresholds reuse more steps and are further off. One that fails is given up after some of its clips, so that
coming from above costs less than halving a span would; the edge is met within a factor of 1.8. What is returned was
measured and passed itself. Pure: `attempt` does the work. Fed by `calibrate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from h3runtime.cli.calibration.trials import Outcome, Timed
from h3runtime.core import MAX_REUSE_THRESHOLD, REUSE_THRESHOLDS, CacheMode
from h3runtime.quality.levels import Choice, Level

NARROWEST = 0.1
"""Of a mode's default."""
STEP = math.sqrt(10)


class Attempt(Protocol):
    """seconds: a clip, above which nobody wants the choice."""

    def __call__(self, choice: Choice, seconds: float) -> Outcome: ...


Clock = Callable[[Sequence[Outcome]], Sequence[Timed]]
"""Times choices that passed, one after the other in turn: what was recorded of each was at another time."""


def fastest(level: Level, bases: Sequence[Choice], attempt: Attempt, clock: Clock) -> tuple[Outcome, Timed] | None:
    """None if nothing keeps the promise."""
    passed: list[Outcome] = []
    for base in bases:
        if (outcome := attempt(base, _least_seconds(passed))).meets(level):
            passed.append(outcome)
    if passed and level.reuse:
        base = _least_time(passed).choice
        for mode in level.reuse:
            whole = partial(attempt, seconds=math.inf)
            if (found := widest_threshold(level, replace(base, cache_mode=mode), mode, whole)) is not None:
                passed.append(found)
    return min(zip(passed, clock(passed), strict=True), key=lambda pair: pair[1].seconds) if passed else None


def widest_threshold(
    level: Level, base: Choice, mode: CacheMode, attempt: Callable[[Choice], Outcome]
) -> Outcome | None:
    """Of a cache mode on top of `base`; None if even narrow ones cost too much."""
    threshold = MAX_REUSE_THRESHOLD
    while threshold >= NARROWEST * REUSE_THRESHOLDS[mode]:
        found = _attempted(base, threshold, attempt)
        if found.meets(level):
            if threshold < MAX_REUSE_THRESHOLD:
                wider = _attempted(base, threshold * math.sqrt(STEP), attempt)
                return wider if wider.meets(level) else found
            return found
        threshold /= STEP
    return None


def _attempted(base: Choice, threshold: float, attempt: Callable[[Choice], Outcome]) -> Outcome:
    """Three digits: what a person can type."""
    return attempt(replace(base, cache_threshold=float(f"{threshold:.3g}")))


def _least_seconds(outcomes: Sequence[Outcome]) -> float:
    return min((outcome.seconds for outcome in outcomes), default=math.inf)


def _least_time(outcomes: Sequence[Outcome]) -> Outcome:
    return min(outcomes, key=lambda outcome: outcome.seconds)
