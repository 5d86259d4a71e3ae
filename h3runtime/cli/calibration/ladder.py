"""How wide a threshold of step reuse may be: a ladder of thresholds for each mode, and the widest rung that holds.

Wider thresholds reuse more steps and are further off, so that halving the ladder finds the edge in three or four
trials. Rungs lie a quarter of a decade apart, from a tenth of a mode's default up to the widest that a request may
name. Pure; fed by `search`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from h3runtime.core import MAX_REUSE_THRESHOLD, REUSE_THRESHOLDS, CacheMode

NARROWEST: Final = 0.1
"""Of a mode's default."""
APART: Final = 10**0.25


def rungs(mode: CacheMode) -> tuple[float, ...]:
    """Ascending; three digits, what a person can type."""
    found, threshold = [], MAX_REUSE_THRESHOLD
    while threshold >= NARROWEST * REUSE_THRESHOLDS[mode]:
        found.append(float(f"{threshold:.3g}"))
        threshold /= APART
    return tuple(reversed(found))


def widest(count: int, holds: Callable[[int], bool]) -> int | None:
    """The last of `count` rungs that holds, if those above one that doesn't don't either; None if none does."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low if low >= 0 else None
