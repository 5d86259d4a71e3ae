"""`sla8_topk_*`: as `sla_topk_*` in 8 bits, for Hopper, and with tiles that its tensor cores are kept busy with.

    rows         in the order of `order`: tiles of 64 picture rows that are near each other, none of them ragged
    128 queries  choose as one, since twice as many keys would be fetched for 64: the tiles of most weight in a softmax
                 of q_mean k_mean^T / sqrt(D), of the means of both halves. On h3-nano, 9,308 rows, a quarter of them is
                 15.8 % off; by the mean of all 128 16.6, and 14.7 where each cube of 64 queries chooses for itself
    exact rows   text, guides, references, the target's sound, and the last up to 127 picture rows: their queries read
                 everything and all queries read their keys, in 8 bits too
    dense calls  the first step, the first block, a call without a layout, one whose pictures are no grid or fewer than
                 128 rows: through `h3_attn8`, so that they cost what `high` costs

BF16 on CUDA goes through `h3_kernels.sparse8`, all else through `h3_kernels.sparse8_emulation`, the same arithmetic in
plain PyTorch, and its dense calls through sdpa: that is what the kernels are held to, and too slow to be offered on a
CPU. D = 128. Experimental until the real model's quality table says otherwise.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import ClassVar, Final

import torch

from h3runtime.backends.attention.base import AttentionBackend, Candidate, Place
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.backends.attention.sparse.backend import SparseAttention
from h3runtime.backends.attention.sparse.order import QUERIES, Order, all_exact, order
from h3runtime.backends.attention.sparse.sla_topk import PERCENTS
from h3runtime.backends.attention.sparse.tiles import TILE, kept_cubes
from h3runtime.core import PackedLayout

__all__ = ["PERCENTS", "Sla8TopkAttention", "name_of"]

KERNELS: Final = "h3_kernels.sparse8"
EMULATION: Final = "h3_kernels.sparse8_emulation"
HEAD_DIM: Final = 128
FP32: Final = 4
CHUNK: Final = 1024
"""Rows of k and v whose statistics one program takes, six rows of them."""


class Sla8TopkAttention(SparseAttention):
    """dense_8bit: what runs dense calls where the kernels run, `dense` the others; attend_dense_8bit: how it is called
    in a run, which counts."""

    head_dims = (HEAD_DIM,)
    dense_steps: ClassVar[int] = 1
    dense_blocks: ClassVar[int] = 1

    def __init__(
        self,
        name: str,
        share: float,
        dense: Candidate,
        dense_8bit: Candidate,
        tally: Tally,
        attend_dense: AttentionBackend | None = None,
        attend_dense_8bit: AttentionBackend | None = None,
    ) -> None:
        super().__init__(name, share, dense, tally, attend_dense)
        self._dense_8bit = dense_8bit
        self._attend_dense_8bit = attend_dense_8bit or dense_8bit
        self._ordered: tuple[PackedLayout, Order] | None = None

    @property
    def hands_to(self) -> tuple[str, ...]:
        return self._dense.name, self._dense_8bit.name

    @property
    def note(self) -> str:
        told = f"8 bits; {QUERIES} queries read {self.share:.0%} of the tiles of {TILE} picture rows"
        return f"{told}; {self._told_dense}dense through {self._dense_8bit.name}"

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        return (
            device.why_not_on(((9, 0),))
            or device.why_without("h3_kernels", "attention8", "sparse8")
            or device.why_without("triton")
            or self._dense_8bit.why_unavailable(device)
        )

    def why_unfit(self, head_dim: int) -> str | None:
        return super().why_unfit(head_dim) or self._dense_8bit.why_unfit(head_dim)

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        """q, k, v in 8 bits, the scales of q, statistics, means and v's sums by tiles, scores and lists."""
        padded = -(-rows // QUERIES) * QUERIES
        tiles, blocks = padded // TILE, padded // QUERIES
        codes = padded * (3 * head_dim + FP32)
        sums = FP32 * head_dim * (6 * -(-rows // CHUNK) + blocks + 2 * tiles)
        lists = FP32 * blocks * (tiles + tiles + 4)
        own = heads * (codes + sums + lists)
        return max(own, self._dense_8bit.workspace_bytes(rows, heads, head_dim))

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Every row exact."""
        return _attended(q, k, v, all_exact(q.shape[1], q.device), 0)

    def _sparse(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layout: PackedLayout,
        place: Place | None,  # noqa: ARG002  # part of the interface
    ) -> torch.Tensor:
        placed = self._order(layout, q.device)
        count = kept_cubes(self.share, placed.tiles)
        self._tally.sparse(self.name, placed.blocks * count, placed.blocks * placed.tiles)
        return _attended(q, k, v, placed, count)

    def _attend_dense_of(self, q: torch.Tensor) -> AttentionBackend:
        return self._attend_dense_8bit if in_kernels(q) else self._attend_dense

    def _why_dense(self, layout: PackedLayout | None, step: int, place: Place | None) -> str | None:
        if (why := super()._why_dense(layout, step, place)) is not None or layout is None:
            return why
        last = layout.segments[-1]
        pictures = last.stop - last.start
        return None if pictures >= QUERIES else f"{pictures} rows of pictures are below {QUERIES}"

    def _order(self, layout: PackedLayout, device: torch.device) -> Order:
        """The same for all calls of a run; the layout is held, so that no other can have its identity."""
        if self._ordered is None or self._ordered[0] is not layout or self._ordered[1].rows.device != device:
            self._ordered = layout, order(layout, device)
        return self._ordered[1]


def name_of(percent: int) -> str:
    return f"sla8_topk_{percent}"


def in_kernels(x: torch.Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, placed: Order, count: int) -> torch.Tensor:
    """By the kernels or by the emulation, whose functions have the same name."""
    by: ModuleType = import_module(KERNELS if in_kernels(q) else EMULATION)
    attended: torch.Tensor = by.attention8_sparse(q, k, v, placed.rows, placed.blocks, count)
    return attended
