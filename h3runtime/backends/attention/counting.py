"""How often each backend was called, and how often one gave a call to another: host counters and no more.

Every backend that `select` hands out counts; a request that asked for diagnostics takes the difference of two looks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from h3runtime.backends.attention.base import Candidate, Place, attend_at
from h3runtime.core import PackedLayout


@dataclass(frozen=True, slots=True)
class Fallback:
    """`backend` gave a call to `to`, because `why`."""

    backend: str
    to: str
    why: str


@dataclass(slots=True)
class Tally:
    """Counts since the engine began. A call that falls back is dispatched to the one that ran it. kept, in_all: pairs
    of tiles that sparse calls of each backend read, and that there were to read."""

    dispatches: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[Fallback] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    in_all: Counter[str] = field(default_factory=Counter)

    def look(self) -> Tally:
        return Tally(Counter(self.dispatches), Counter(self.fallbacks), Counter(self.kept), Counter(self.in_all))

    def sparse(self, name: str, kept: int, in_all: int) -> None:
        """A call that `name` ran sparsely itself."""
        self.dispatches[name] += 1
        self.kept[name] += kept
        self.in_all[name] += in_all

    def since(self, before: Tally) -> dict[str, Any]:
        """As diagnostics tell it: {dispatches: {name: count}, fallbacks: [{backend, to, why, count}]}, and where there
        were sparse calls that count their tiles, kept_share: {name: share}."""
        fallbacks = self.fallbacks - before.fallbacks
        in_all, kept = self.in_all - before.in_all, self.kept - before.kept
        shares = {"kept_share": {name: kept[name] / pairs for name, pairs in in_all.items()}} if in_all else {}
        return shares | {
            "dispatches": dict(self.dispatches - before.dispatches),
            "fallbacks": [
                {"backend": f.backend, "to": f.to, "why": f.why, "count": count} for f, count in fallbacks.items()
            ],
        }


class Counted:
    """A candidate that counts its calls; the same in all else. One with `counts_itself` may give calls away, and counts
    those that it runs on its own."""

    def __init__(self, backend: Candidate, tally: Tally) -> None:
        self.backend, self.name, self.grade = backend, backend.name, backend.grade
        self._tally, self._itself_counts = tally, bool(getattr(backend, "counts_itself", False))

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        return self.attend_at(q, k, v, layout=layout, step=step, place=None)

    def attend_at(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        layout: PackedLayout | None,
        step: int,
        place: Place | None,
    ) -> torch.Tensor:
        if not self._itself_counts:
            self._tally.dispatches[self.name] += 1
        return attend_at(self.backend, q, k, v, layout=layout, step=step, place=place)
