"""An attention backend as the block sees it, with something of a caller's around each call: timing it, looking at it.

Decides and computes nothing. Made by profiles and comparisons; attended through by the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from h3runtime.backends.attention.base import AttentionBackend, Place, attend_at
from h3runtime.core import PackedLayout

Around = Callable[[Callable[[], torch.Tensor]], torch.Tensor]
"""Makes the call, once at least, and gives what it gave."""


class AttentionAround:
    """`own`, every call of it made by `around`; the same in all else."""

    def __init__(self, own: AttentionBackend, around: Around) -> None:
        self.name, self.grade = own.name, own.grade
        self._own, self._around = own, around

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
        return self._around(partial(attend_at, self._own, q, k, v, layout=layout, step=step, place=place))
