"""`triton`: our own kernels, one pass over memory for each producer; CUDA only.

RoPE, SwiGLU and gates equal the definition bit for bit; norms differ in the order of a sum, which moves at most one
element in a thousand by one BF16 ulp (architecture.md, Fused producers). Imports `h3_kernels`, and Triton with it, at
the first call. Fed by the blocks; holds nothing but the row indices of the last few runs' sequences. Held to the
definition on an H200 (`tests/gpu/test_kernels.py`); other devices of the same arithmetic were not at hand.
"""

from __future__ import annotations

from collections import OrderedDict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import torch

from h3runtime.backends.fused.base import Activation, Form, NormWeight, Rotary, TableRows
from h3runtime.backends.fused.definition import rounded_to
from h3runtime.backends.linear.nvfp4_packing import Nvfp4Form
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.row_codes import RowCodes

if TYPE_CHECKING:
    from h3_kernels.nvfp4 import Packed

HELD: Final = 16
"""Row indices kept, 151 kB each at S = 37,810: the steps of a run have one or two."""
CAPABILITY: Final = (8, 0)
"""The first with BF16 arithmetic and conversions."""


class TritonProducers:
    name = "triton"
    grade = "validated"
    gives_codes = True

    def __init__(self, packs: frozenset[str] = frozenset()) -> None:
        self.packs = packs
        self._indices: OrderedDict[tuple[object, ...], torch.Tensor] = OrderedDict()

    def why_unavailable(self, device: torch.device) -> str | None:
        if device.type != "cuda":
            return f"needs a CUDA device, not {device.type}"
        if find_spec("triton") is None:
            return "the package triton isn't installed"
        found = torch.cuda.get_device_capability(device)
        if found < CAPABILITY:
            return f"needs SM {CAPABILITY[0]}.{CAPABILITY[1]}, this is SM {found[0]}.{found[1]}"
        return None

    def rotary(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotary:
        return Rotary(cos.contiguous(), sin.contiguous())

    def norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
        from h3_kernels import producers

        return producers.norm(x, norm.weight.to(x.dtype), norm.eps)

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
        from h3_kernels import producers

        by, weight = producers.Modulation(shift, scale, self._index(rows, x)), norm.weight.to(x.dtype)
        if codes is None:
            return producers.norm_modulate(x, weight, norm.eps, by)
        if isinstance(codes, Nvfp4Form):
            if not _packable(x, x.shape[-1]):
                return rounded_to(codes, producers.norm_modulate(x, weight, norm.eps, by))
            from h3_kernels import nvfp4_fused

            return _rows(nvfp4_fused.norm_modulate_pack(x, weight, norm.eps, by, codes.tensor_scale), x)
        made = producers.norm_modulate_fp8(x, weight, norm.eps, by)
        return RowCodes(made.codes, made.scales.unsqueeze(1), x.dtype)

    def norm_rotate_(self, qkv: torch.Tensor, q_norm: NormWeight, k_norm: NormWeight, rotary: Rotary | None) -> None:
        from h3_kernels import producers

        assert q_norm.eps == k_norm.eps, "one kernel norms both"
        cos, sin = (None, None) if rotary is None else (rotary.cos, rotary.sin)
        weights = q_norm.weight.to(qkv.dtype), k_norm.weight.to(qkv.dtype)
        producers.norm_rotate_(qkv, *weights, q_norm.eps, cos, sin)

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        from h3_kernels import producers

        if codes is None:
            return producers.swiglu_(x)
        if isinstance(codes, Nvfp4Form):
            if not _packable(x, x.shape[-1] // 2):
                return rounded_to(codes, producers.swiglu_(x))
            from h3_kernels import nvfp4_fused

            return _rows(nvfp4_fused.swiglu_pack(x, codes.tensor_scale), x)
        made = producers.swiglu_fp8(x)
        return RowCodes(made.codes, made.scales.unsqueeze(1), x.dtype)

    def add_gated_(self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: TableRows) -> torch.Tensor:
        from h3_kernels import producers

        return producers.add_gated_(x, update, gate, self._index(rows, x))

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
        from h3_kernels import producers

        by, weight = producers.Modulation(shift, scale, self._index(rows, x)), norm.weight.to(x.dtype)
        residual = producers.Residual(update, gate)
        if codes is None:
            return producers.add_gated_norm_modulate(x, residual, weight, norm.eps, by)
        if isinstance(codes, Nvfp4Form):
            if not _packable(x, x.shape[-1]):
                return rounded_to(codes, producers.add_gated_norm_modulate(x, residual, weight, norm.eps, by))
            from h3_kernels import nvfp4_fused

            by_scale = codes.tensor_scale
            return _rows(nvfp4_fused.add_gated_norm_modulate_pack(x, residual, weight, norm.eps, by, by_scale), x)
        made = producers.add_gated_norm_modulate_fp8(x, residual, weight, norm.eps, by)
        return RowCodes(made.codes, made.scales.unsqueeze(1), x.dtype)

    def encode(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Activation:
        from h3_kernels import producers

        if scale is not None:
            return RowCodes(producers.quantize_by(x, scale), scale, x.dtype)
        made = producers.quantize_rows(x)
        return RowCodes(made.codes, made.scales.unsqueeze(1), x.dtype)

    def held_for(self, rows: TableRows, x: torch.Tensor) -> object:
        return self._index(rows, x)

    def _index(self, rows: TableRows, x: torch.Tensor) -> torch.Tensor:
        """Table row of each row of x, int [S], made once for a sequence and without waiting for the device."""
        if rows.index is not None:
            return rows.index
        key = (rows.segments, x.shape[0], x.device)
        found = self._indices.get(key)
        if found is None:
            found = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
            for start, stop, row in rows.segments:
                found[start:stop] = row
            self._indices[key] = found
        self._indices.move_to_end(key)
        if len(self._indices) > HELD:
            self._indices.popitem(last=False)
        return found


def _packable(x: torch.Tensor, width: int) -> bool:
    """Whether kernels make NVFP4 of so many columns that x gives."""
    return x.dtype is torch.bfloat16 and width % nvfp4.BLOCK == 0


def _rows(made: Packed, x: torch.Tensor) -> Nvfp4Rows:
    return Nvfp4Rows(made.codes, made.block_scale, made.tensor_scale, x.shape[0], x.dtype)
