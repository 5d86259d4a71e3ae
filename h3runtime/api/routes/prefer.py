"""`Prefer` (RFC 7240): how long a client would wait for the end of its job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 10**6
"""Seconds; longer waits are as good as endless."""


@dataclass(frozen=True, slots=True)
class Preference:
    """seconds: None for as long as it takes. applied: what `Preference-Applied` says, "" for nothing."""

    seconds: float | None = None
    applied: str = ""


def preference_of(headers: Sequence[str]) -> Preference:
    """Of all `Prefer` headers together. `wait` beats `respond-async`, the first of each counts, the rest is ignored."""
    words = [word.strip() for header in headers for word in re.split("[,;]", header)]
    waits = [found[1] for word in words if (found := re.fullmatch(r'(?i:wait)\s*=\s*"?([0-9]+)"?', word))]
    if waits:
        shown = waits[0].lstrip("0")[:12] or "0"
        return Preference(float(min(int(shown), LONGEST)), f"wait={shown}")
    if any(word.lower() == "respond-async" for word in words):
        return Preference(0.0, "respond-async")
    return Preference()
