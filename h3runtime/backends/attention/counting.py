"""How often each backend was called, and how often one gave a call to another: host counters and no more.

Every backend that `select` hands out counts; a request that asked for diagnostics takes the difference of two looks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from h3runtime.backends.attention.base import Candidate
from h3runtime.core import PackedLayout


@dataclass(frozen=True, slots=True)
class Fallback:
    """`backend` gave a call to `to`, because `why`."""

    backend: str
    to: str
    why: str


@dataclass(slots=True)
class Tally:
    """Counts since the engine began. A call that falls back is dispatched to the one that ran it."""

    dispatches: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[Fallback] = field(default_factory=Counter)

    def look(self) -> Tally:
        return Tally(Counter(self.dispatches), Counter(self.fallbacks))

    def since(self, before: Tally) -> dict[str, Any]:
        """As diagnostics tell it: {dispatches: {name: count}, fallbacks: [{backend, to, why, count}]}."""
        fallbacks = self.fallbacks - before.fallbacks
        return {
            "dispatches": dict(self.dispatches - before.dispatches),
            "fallbacks": [
                {"backend": f.backend, "to": f.to, "why": f.why, "count": count} for f, count in fallbacks.items()
            ],
        }


class Counted:
    """A candidate that counts its calls; the same in all else. itself_counts: it may give calls away, and counts those
    that it runs on its own."""

    def __init__(self, backend: Candidate, tally: Tally, *, itself_counts: bool = False) -> None:
        self.backend, self.name, self.grade = backend, backend.name, backend.grade
        self._tally, self._itself_counts = tally, itself_counts

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        if not self._itself_counts:
            self._tally.dispatches[self.name] += 1
        return self.backend.attend(q, k, v, layout=layout, step=step)
