"""An attention backend that is another one from step to step.

Holds one backend for each forward of a run and hands every call to the one of its step; computes nothing. Fed by
`engine` from a request's attention plan; the blocks see an ordinary backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from h3runtime.backends.attention.base import AttentionBackend, Place, attend_at
from h3runtime.core import PackedLayout


class SteppedAttention:
    """name: as the job tells it. backends: of each forward, in order."""

    grade = "experimental"

    def __init__(self, name: str, backends: Sequence[AttentionBackend]) -> None:
        self.name = name
        self._backends = tuple(backends)

    def at(self, step: int) -> AttentionBackend:
        """Who attends at `step`."""
        return self._backends[step]

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
        return attend_at(self.at(step), q, k, v, layout=layout, step=step, place=place)


def told_plan(names: Sequence[str]) -> str:
    """`sdpa` if all are, else who runs which steps: `sdpa 0-3, sage2 4-11`."""
    runs, first = [], 0
    for name, group in groupby(names):
        last = first + len(list(group)) - 1
        runs.append(f"{name} {first}-{last}" if last > first else f"{name} {first}")
        first = last + 1
    return names[0] if len(set(names)) == 1 else ", ".join(runs)
