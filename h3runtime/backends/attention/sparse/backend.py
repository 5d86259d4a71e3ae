"""What both sparse methods share: which calls are dense, how tiles are chosen, and what is counted.

A call goes through `definition` on the CPU and in FP32, through `h3_kernels.sparse` on CUDA in BF16 and FP16.

    exact rows          text, guides, references, the target's sound (`base.exact_rows`): their queries read everything,
                        through the dense backend, and every query reads their keys
    the pictures' rows  cubes of 64; each reads `kept_cubes(share, cubes)` cubes, itself not favoured
    dense calls         the first `dense_steps` steps, the first `dense_blocks` blocks, a call without a layout and one
                        whose pictures are no grid: given to the dense backend and counted with the reason

On the CPU it is there to be judged, not to save time: dense attention in BF16 multiplies in larger pieces, and half of
the cubes took 5 times as long at S = 9,308. A request has more dense steps with an `attention_plan`. Experimental until
the real model's quality table says otherwise; h3-nano's is in benchmarks/LOG.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from importlib import import_module
from types import ModuleType
from typing import ClassVar, Final

import torch

from h3runtime.backends.attention.base import AttentionBackend, Candidate, Kernel, Place
from h3runtime.backends.attention.counting import Fallback, Tally
from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.backends.attention.sparse import definition
from h3runtime.backends.attention.sparse.tiles import EDGE, TILE, Tiles, kept_cubes, tile, tile_all, why_no_grid
from h3runtime.core import PackedLayout

KERNELS: Final = "h3_kernels.sparse"
IN_KERNELS: Final = (torch.bfloat16, torch.float16)
WORST_FILL: Final = 2
"""Tiles that rows may take, over rows / 64: cubes at the ends of a grid are ragged; 1.2 at 1344x768x124."""


COPIED_BYTES: Final = 4
"""Of k and v together, in BF16."""
BEST_COPIES: Final = 7
"""Of the kept scores' share: values and INT64 numbers as they are found, and both in order."""


class SparseAttention(Kernel):
    """What leaves out keys, and which calls it gives away. share: of the pictures' tiles that each query keeps. dense:
    what runs whole dense calls; attend_dense: how it is called in a run, which counts."""

    grade = "experimental"
    counts_itself = True
    dense_steps: ClassVar[int] = 0
    dense_blocks: ClassVar[int] = 0

    def __init__(
        self, name: str, share: float, dense: Candidate, tally: Tally, attend_dense: AttentionBackend | None = None
    ) -> None:
        assert 0 < share <= 1
        self.name, self.share = name, share
        self._dense, self._attend_dense, self._tally = dense, attend_dense or dense, tally

    @property
    def hands_to(self) -> tuple[str, ...]:
        return (self._dense.name,)

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
        """As `attend`, by a caller who may know where in the network it is."""
        why_dense = self._why_dense(layout, step, place)
        if why_dense is not None or layout is None:
            to = self._attend_dense_of(q)
            self._tally.fallbacks[Fallback(self.name, to.name, why_dense or "")] += 1
            return to.attend(q, k, v, layout=layout, step=step)
        return self._sparse(q, k, v, layout, place)

    @abstractmethod
    def _sparse(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: PackedLayout, place: Place | None
    ) -> torch.Tensor:
        """A call that is sparse, counted."""

    def _attend_dense_of(self, q: torch.Tensor) -> AttentionBackend:  # noqa: ARG002  # read where there are two
        """What runs a whole dense call."""
        return self._attend_dense

    def _why_dense(self, layout: PackedLayout | None, step: int, place: Place | None) -> str | None:
        if layout is None:
            return "no layout"
        if step < self.dense_steps:
            return f"one of the first {self.dense_steps} steps"
        if place is not None and place.block < self.dense_blocks:
            return f"one of the first {self.dense_blocks} blocks"
        return why_no_grid(layout)

    @property
    def _told_dense(self) -> str:
        return f"dense in the first {self.dense_steps} steps and {self.dense_blocks} blocks; " * (self.dense_steps > 0)


class BlockSparseAttention(SparseAttention):
    """By `definition` or its kernels; `dense` runs the exact rows' queries too."""

    tolerance = 0.02
    row_bytes: ClassVar[int] = 0
    """Of `workspace_bytes`, for each of S*H*D values."""

    def __init__(
        self, name: str, share: float, dense: Candidate, tally: Tally, attend_dense: AttentionBackend | None = None
    ) -> None:
        super().__init__(name, share, dense, tally, attend_dense)
        self._tiled: tuple[PackedLayout, Tiles] | None = None

    @property
    def note(self) -> str:
        told = f"reads {self.share:.0%} of the cubes of {EDGE}x{EDGE}x{EDGE} picture rows"
        return f"{told}; {self._told_dense}dense through sdpa"

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if device.kind != "cuda":
            return self._dense.why_unavailable(device)
        if device.capability is None or device.capability < (8, 0):
            return f"needs SM 8.0, and this is {device.told_capability}"
        return (
            device.why_without("h3_kernels", "sparse")
            or device.why_without("triton")
            or self._dense.why_unavailable(device)
        )

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        """Numbers of the kept tiles, means, a piece of scores while the best are found; the kernels copy nothing."""
        tiles = most_tiles(rows)
        kept = 4 * heads * tiles * math.ceil(self.share * tiles + EDGE)
        means = 3 * 4 * heads * tiles * head_dim
        piece = min(definition.PIECE_BYTES, 4 * heads * tiles**2)
        return self.row_bytes * rows * heads * head_dim + kept + means + int(piece * (1 + BEST_COPIES * self.share))

    def host_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        """Beside that on a CPU, where the definition runs: k and v in tiles, and pieces of those that are read."""
        tiles = most_tiles(rows)
        read = COPIED_BYTES * heads * tiles * math.ceil(self.share * tiles + EDGE) * TILE * head_dim
        return WORST_FILL * COPIED_BYTES * rows * heads * head_dim + min(2 * definition.PIECE_BYTES, read)

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Every tile read by every tile."""
        tiles = tile_all(q.shape[1], q.device)
        every = torch.arange(tiles.exact, dtype=torch.int32, device=q.device)
        kept = every.expand(q.shape[0], q.shape[2], tiles.exact, tiles.exact).contiguous()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        arithmetic_of(q).attend_tiles(q, k, v, tiles.rows, kept, 0, out)
        return out

    def _sparse(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: PackedLayout, place: Place | None
    ) -> torch.Tensor:
        tiles = self._tiles(layout, q.device)
        count = kept_cubes(self.share, tiles.cubes)
        self._tally.sparse(self.name, tiles.cubes * count, tiles.cubes**2)
        return self._tiled_call(q, k, v, tiles, count, place)

    def _tiled_call(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        tiles: Tiles,
        count: int,
        place: Place | None,  # noqa: ARG002  # read by a method that has a layer of its own
    ) -> torch.Tensor:
        means = [arithmetic_of(x).pooled(x, tiles.rows, tiles.sizes) for x in (q, k)]
        return self._kept(q, k, v, tiles, definition.chosen(means[0], means[1], tiles.exact, count))

    def _kept(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: Tiles, kept: torch.Tensor
    ) -> torch.Tensor:
        """The exact rows densely, the cubes over their kept tiles."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        exact = slice(0, tiles.exact_rows)
        if tiles.exact_rows:
            out[:, exact] = self._dense.call(q[:, exact], k, v)
        arithmetic_of(q).attend_tiles(q, k, v, tiles.rows, kept, tiles.exact, out)
        return out

    def _tiles(self, layout: PackedLayout, device: torch.device) -> Tiles:
        """The same for all calls of a run; the layout is held, so that no other can have its identity."""
        if self._tiled is None or self._tiled[0] is not layout or self._tiled[1].rows.device != device:
            self._tiled = layout, tile(layout, device)
        return self._tiled[1]


def most_tiles(rows: int) -> int:
    return WORST_FILL * math.ceil(rows / TILE) + EDGE


def arithmetic_of(x: torch.Tensor) -> ModuleType:
    """`definition`, or the kernels of the same two names; these are imported at the first call."""
    return import_module(KERNELS) if x.is_cuda and x.dtype in IN_KERNELS else definition
