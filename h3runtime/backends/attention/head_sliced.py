"""`kj_head_sliced`: some heads at a time through another backend, which bounds what that one's copies take.

Heads don't see each other, so the numbers are the other backend's own: bit for bit on the CPU, and wherever a kernel
has no plan, mean or scale that depends on how many heads there are (`cudnn_fp8` has one scale a tensor). The inner
backend gets views [B, S, h, D] of q, k and v; its results land in one tensor [B, S, H, D]. `H3_HEAD_SLICE_BACKEND`
names it, `H3_HEAD_SLICE_SIZE` is h.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from h3runtime.backends.attention.base import AttentionBackend, Candidate
from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.core import PackedLayout

BF16 = 2
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class HeadSlicedAttention:
    """inner: the backend itself. attend_inner: how it is called in a run, which counts."""

    name = "kj_head_sliced"

    def __init__(self, inner: Candidate, attend_inner: AttentionBackend | None, size: int) -> None:
        self.grade, self.exact, self.tolerance = inner.grade, inner.exact, inner.tolerance
        if self.grade == "reference":
            self.grade = "validated"
        self._inner, self._attend_inner, self._size = inner, attend_inner or inner, size

    @property
    def hands_to(self) -> tuple[str, ...]:
        return (self._inner.name,)

    @property
    def note(self) -> str:
        return f"{self._size} heads at a time through {self._inner.name}"

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        return self._told(self._inner.why_unavailable(device))

    def why_unfit(self, head_dim: int) -> str | None:
        return self._told(self._inner.why_unfit(head_dim))

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        size = min(self._size, heads)
        return self._inner.workspace_bytes(rows, size, head_dim) + BF16 * rows * size * head_dim

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self._sliced(self._inner.call, q, k, v)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        def inner(*slices: torch.Tensor) -> torch.Tensor:
            return self._attend_inner.attend(*slices, layout=layout, step=step)

        return self._sliced(inner, q, k, v)

    def _sliced(self, attend: Attend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for piece, *heads in zip(*(torch.split(x, self._size, dim=2) for x in (out, q, k, v)), strict=True):
            piece.copy_(attend(*heads))
        return out

    def _told(self, why_not: str | None) -> str | None:
        if why_not is None:
            return None
        return f"H3_HEAD_SLICE_BACKEND={self._inner.name} can't run: {why_not}"
