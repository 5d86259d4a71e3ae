"""NVFP4 times NVFP4 (W4A4) without its hardware: activations rounded as a kernel rounds them, sums in FP32.

    a = E2M1 * E4M3 of x, w = E2M1 * E4M3 of the weight        exact in BF16
    y = (a w^T in FP32) * (s_a s_w), then rounded, + b           s_a of all of x, or the stored `input_scale`

What exactness of the other `nvfp4` linears is tested against, and what shows the quality of 4-bit activations where
no kernel runs; it says nothing about time. On a GPU whose activations a kernel can pack, that packs them here too, so
that what is multiplied is what a Blackwell would multiply; elsewhere `quant.nvfp4` rounds. x that a producer has packed
is decoded: the same numbers. Every shape fits. Fed and read as `nvfp4_base` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from h3runtime.backends.linear.base import CallBytes
from h3runtime.backends.linear.dequant import DECODING_BYTES, DequantLinear, scaled
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.nvfp4_base import DEFINITION, Nvfp4LinearBase, biased, packed_bytes
from h3runtime.backends.linear.nvfp4_packing import found_scale, has_packer, packs_there
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.slices import SLICE_ELEMENTS, round_up
from h3runtime.quant.stored import Nvfp4Weight
from h3runtime.quant.tiles import TILE_ROWS

ROUNDING_BYTES = 20
"""Of each value of a slice of x while it is rounded: in FP32, divided, as codes, looked up, scaled. 17 measured."""


class Nvfp4EmulatedLinear(Nvfp4LinearBase):
    name = "nvfp4_emulated"

    def why_unavailable(self, device: torch.device) -> str | None:
        return self.why_unpacked(linear_facts(device))

    def why_unpacked(self, facts: LinearFacts) -> str | None:
        """Without comfy-kitchen, which packs unless somebody else is asked for, by the definition."""
        return None if self.scale_backend == "kitchen" else super().why_unpacked(facts)

    def why_unfit(self, stored: Any) -> str | None:
        if not isinstance(stored, Nvfp4Weight):
            return f"it is stored as {stored.format}"
        return "its marker asks for full precision" if stored.full_precision else None

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """Both operands of a slice, its sums, and what rounding takes, or decoding what a kernel packed before."""
        if self.why_unfit(resident) is not None:
            return DequantLinear.call_bytes(self, resident, rows, dtype)
        if not self._packs(resident, dtype):
            return self._product_bytes(resident, rows, ROUNDING_BYTES)
        packed = packed_bytes(rows, resident.shape[1], self.scale_backend)
        return CallBytes(packed + self.came_bytes(resident, rows).held)

    def came_bytes(self, resident: Any, rows: int) -> CallBytes:
        return self._product_bytes(resident, rows, DECODING_BYTES)

    def view_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> int:
        return super().view_bytes(resident, rows, dtype) if self._packs(resident, dtype) else 0

    def _packs(self, resident: Any, dtype: torch.dtype) -> bool:
        """Whether a kernel packs its input."""
        return self.why_unfit(resident) is None and packs_there(
            resident.codes.device, dtype, resident.shape[1], self.scale_backend
        )

    def _product_bytes(self, resident: Any, rows: int, making: int) -> CallBytes:
        """making: bytes that each value of a slice of x takes until it is an operand."""
        out_width, width = resident.shape
        operand = _operand_dtype(resident.codes.device).itemsize
        most = min(rows, _slice_rows(width, out_width))
        moving = most * (width * operand + max(width * making, out_width * torch.float32.itemsize))
        return CallBytes(width * out_width * operand + moving)

    def apply(self, x: torch.Tensor | Nvfp4Rows, resident: Any) -> torch.Tensor:
        if isinstance(x, Nvfp4Rows) or self.why_unfit(resident) is not None:
            return super().apply(x, resident)
        rows = scaled(x, resident).reshape(-1, x.shape[-1])
        if has_packer(rows, self.scale_backend):
            return super().apply(x, resident)
        self.packings.by[DEFINITION] += 1
        return biased(definition(rows, resident), resident).view(*x.shape[:-1], -1)

    def product(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        """Exact operands in slices of rows, whole tiles of scales each."""
        width, dtype, stored = weight.shape[1], _operand_dtype(rows.codes.device), rows.as_weight

        def decoded(part: slice) -> torch.Tensor:
            scales = stored.block_scale[part.start : round_up(part.stop, TILE_ROWS)]
            shape = part.stop - part.start, stored.shape[1]
            some = replace(stored, codes=stored.codes[part], block_scale=scales, shape=shape)
            return nvfp4.dequantize_unscaled(some, dtype)[:, :width]

        return _product(decoded, rows.rows, rows.tensor_scale, rows.dtype, weight)


def definition(x: torch.Tensor, weight: Nvfp4Weight) -> torch.Tensor:
    """x [M, K] -> [M, N] in x's dtype; a slice of rows at a time, all by one scale of x."""
    scale = tensor_scale(x, weight)
    dtype = _operand_dtype(x.device)
    return _product(lambda part: nvfp4.rounded_unscaled(x[part], scale, dtype), x.shape[0], scale, x.dtype, weight)


def _product(
    operand: Callable[[slice], torch.Tensor],
    rows: int,
    scale: torch.Tensor,
    dtype: torch.dtype,
    weight: Nvfp4Weight,
) -> torch.Tensor:
    """operand: some of the rows of x without its tensor scale. Cut alike for all, so that sums come in one order."""
    device = weight.codes.device
    decoded = nvfp4.dequantize_unscaled(weight, _operand_dtype(device))
    alpha = scale * weight.tensor_scale.reshape(())
    y = torch.empty(rows, decoded.shape[0], dtype=dtype, device=device)
    step = _slice_rows(weight.shape[1], decoded.shape[0])
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        y[part] = _sums(operand(part), decoded).mul_(alpha)
    return y


def tensor_scale(x: torch.Tensor, weight: Nvfp4Weight) -> torch.Tensor:
    """fp32 []: the stored one of activations, or this activation's own."""
    stored = weight.input_scale
    return found_scale(x) if stored is None else stored.reshape(()).float()


def _operand_dtype(device: torch.device) -> torch.dtype:
    """Both hold the operands exactly; a GPU multiplies BF16 into FP32 sums, which PyTorch's CPU has no product for."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _sums(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.float32:
        return x @ weight.t()
    return torch.mm(x, weight.t(), out_dtype=torch.float32)


def _slice_rows(width: int, out_width: int) -> int:
    """Whole tiles of scales."""
    return max(SLICE_ELEMENTS // max(width, out_width) // TILE_ROWS, 1) * TILE_ROWS
