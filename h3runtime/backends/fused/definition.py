"""`torch`: the definition of correct, one plain PyTorch operation after the other.

Every rounding of the model between its matrix products is written down here (dit-contract §3.1, §4.2-4.4). Runs
anywhere. Read by the blocks, and by every other family's tests.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional as F

from h3runtime.backends.fused.base import Activation, Form, NormWeight, Producers, Rotary, TableRows
from h3runtime.backends.linear.nvfp4_packing import Nvfp4Form, packed
from h3runtime.quant.fp8 import codes_of, quantize_rows
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.row_codes import RowCodes

QK_ROWS: Final = 4096
"""Rows normed and rotated at once: bounds the copies at 59 MB each for 56 heads of 128 in bf16."""


class TorchProducers:
    name = "torch"
    grade = "reference"
    gives_codes = False

    def __init__(self, packs: frozenset[str] = frozenset()) -> None:
        self.packs = packs

    def why_unavailable(self, device: torch.device) -> str | None:  # noqa: ARG002  # part of the interface
        return None

    def rotary(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotary:
        return Rotary(cos, sin)

    def norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
        return F.rms_norm(x, norm.weight.shape, norm.weight.to(x.dtype), norm.eps)

    def norm_modulate(
        self,
        x: torch.Tensor,
        norm: NormWeight,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: TableRows,
        *,
        codes: Form | None = None,
    ) -> Activation:
        made = modulate_(self.norm(x, norm), shift, scale, rows)
        return made if codes is None else rounded_to(codes, made)

    def norm_rotate_(self, qkv: torch.Tensor, q_norm: NormWeight, k_norm: NormWeight, rotary: Rotary | None) -> None:
        for start in range(0, qkv.shape[0], QK_ROWS):
            piece = slice(start, start + QK_ROWS)
            turn = None if rotary is None else rotary.rows(piece)
            self._one(qkv[piece, 0], q_norm, turn)
            self._one(qkv[piece, 1], k_norm, turn)

    def _one(self, x: torch.Tensor, norm: NormWeight, rotary: Rotary | None) -> None:
        """q or k [n, H, D] in place: norm first, then rotation (§3.1)."""
        normed = self.norm(x, norm)
        if rotary is not None:
            rotate_(normed, rotary.cos, rotary.sin)
        x.copy_(normed)

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        gate, value = x.chunk(2, dim=-1)
        made = F.silu(gate, inplace=True).mul_(value)
        return made if codes is None else rounded_to(codes, made)

    def add_gated_(self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: TableRows) -> torch.Tensor:
        return add_gated_(x, update, gate, rows)

    def add_gated_norm_modulate(
        self,
        x: torch.Tensor,
        update: torch.Tensor,
        gate: torch.Tensor,
        norm: NormWeight,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: TableRows,
        *,
        codes: Form | None = None,
    ) -> Activation:
        return self.norm_modulate(self.add_gated_(x, update, gate, rows), norm, shift, scale, rows, codes=codes)

    def encode(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Activation:
        return in_codes(x) if scale is None else RowCodes(codes_of(x, scale), scale, x.dtype)

    def held_for(self, rows: TableRows, x: torch.Tensor) -> object:  # noqa: ARG002
        return None


DEFINITION: Final[Producers] = TorchProducers()
"""Holds nothing; what a block uses unless it is told otherwise."""


def in_codes(x: torch.Tensor) -> RowCodes:
    """x [S, K] -> FP8 by the linear's own rule."""
    return RowCodes(*quantize_rows(x), x.dtype)


def rounded_to(form: Form, x: torch.Tensor) -> RowCodes | Nvfp4Rows:
    """x [S, K] in that form, by the linear's own rule."""
    return packed(x, form.scale, form.by) if isinstance(form, Nvfp4Form) else in_codes(x)


def pick(table: torch.Tensor, row: int | torch.Tensor) -> torch.Tensor:
    """[N, H] -> [H] for one row, [n, H] for several."""
    return table[row] if isinstance(row, int) else table.index_select(0, row)


def modulate_(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor, rows: TableRows) -> torch.Tensor:
    """x*(1 + scale) + shift in place, each operation rounds (dit-contract §4.2); x [S, H], tables [N, H], one dtype."""
    for piece, row in rows.pieces():
        x[piece].mul_(1 + pick(scale, row)).add_(pick(shift, row))
    return x


def add_gated_(x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: TableRows) -> torch.Tensor:
    """x + update*gate in place, rounded once (dit-contract §4.2); x, update [S, H], gate [N, H]."""
    for piece, row in rows.pieces():
        x[piece].addcmul_(update[piece], pick(gate, row))
    return x


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [S, H, D] in place; cos, sin [S, 3n] in x's dtype, 6n <= D. Every product and sum rounds (§3.1)."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = first * cos - second * sin
    second.mul_(cos).add_(first * sin)
    first.copy_(turned)
