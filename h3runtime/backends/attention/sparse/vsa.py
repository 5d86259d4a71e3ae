"""`vsa`: video sparse attention, for checkpoints trained with it (FastH3), which carry `attn.to_gate_compress`.

    fine      as `sla_topk`: each cube reads all exact rows and `SHARE` of the cubes
    coarse    attention among the means of all tiles, prefix included, spread over each tile's rows
    out       fine + coarse * gate, gate = to_gate_compress(x) [S, H, D] of the same x that q, k and v are made of,
              with no activation; added to all rows, those whose fine part is dense too

Read of the public implementations, as facts: FastVideo's `VIDEO_SPARSE_ATTN_H3` (its pull requests 1695 and 1731),
xDiT's 780 and sglang's 37480: 4x4x4 cubes, segments of the prefix in tiles of their own, prefix keys never left out,
prefix queries dense, 0.9 of the cubes left out, ceil((1 - sparsity) cubes) kept, no dense step or block. Trained for
text to video alone. A checkpoint without the layer is refused: its pictures were never trained to do without the rest.
"""

from __future__ import annotations

from typing import Final

import torch

from h3runtime.backends.attention.base import Place
from h3runtime.backends.attention.sparse import definition
from h3runtime.backends.attention.sparse.backend import BlockSparseAttention, arithmetic_of
from h3runtime.backends.attention.sparse.tiles import Tiles
from h3runtime.errors import BackendUnavailable, Offence

NAME: Final = "vsa"
SHARE: Final = 0.1
GATE: Final = "to_gate_compress"


class VsaAttention(BlockSparseAttention):
    reads_gates = True
    row_bytes = 4
    """The gate and what it multiplies."""

    def _tiled_call(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: Tiles, count: int, place: Place | None
    ) -> torch.Tensor:
        if place is None or place.gate is None:
            why = f"this block has no {GATE}"
            raise BackendUnavailable(f"attention: {self.name} can't run here: {why}", [Offence("attention", why)])
        means = [arithmetic_of(x).pooled(x, tiles.rows, tiles.sizes) for x in (q, k, v)]
        out = self._kept(q, k, v, tiles, definition.chosen(means[0], means[1], tiles.exact, count))
        definition.add_gated_(out, definition.coarse(*(m.to(q.dtype) for m in means)), place.gate(), tiles.owner)
        return out
