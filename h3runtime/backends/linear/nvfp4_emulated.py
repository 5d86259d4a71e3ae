"""NVFP4 times NVFP4 (W4A4) without its hardware: activations rounded as a kernel rounds them, sums in FP32.

    a = E2M1 * E4M3 of x, w = E2M1 * E4M3 of the weight        exact in BF16
    y = (a w^T in FP32) * (s_a s_w), then rounded, + b           s_a of all of x, or the stored `input_scale`

What exactness of `nvfp4` is tested against, and what shows the quality of 4-bit activations where no kernel runs; it
says nothing about time. A linear whose weight isn't stored as NVFP4, and one whose marker forbids it, is left to
`dequant`. An AWQ scale multiplies the activation before it is rounded (checkpoint-formats §3). Fed and read as `base`
says.
"""

from __future__ import annotations

from typing import Any

import torch

from h3runtime.backends.linear.base import CallBytes
from h3runtime.backends.linear.dequant import DequantLinear, scaled
from h3runtime.quant import nvfp4
from h3runtime.quant.slices import SLICE_ELEMENTS
from h3runtime.quant.stored import Nvfp4Weight

FORMAT = "nvfp4"
ROUNDING_BYTES = 20
"""Of each value of a slice of x while it is rounded: in FP32, divided, as codes, looked up, scaled. 17 measured."""


class Nvfp4EmulatedLinear(DequantLinear):
    name = "nvfp4_emulated"
    grade = "experimental"
    reads = frozenset[str]()
    only = FORMAT

    def why_unfit(self, stored: Any) -> str | None:
        if not isinstance(stored, Nvfp4Weight):
            return f"it is stored as {stored.format}"
        return "its marker asks for full precision" if stored.full_precision else None

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """Both operands of a slice, its sums, and what rounding takes."""
        if self.why_unfit(resident) is not None:
            return super().call_bytes(resident, rows, dtype)
        out_width, width = resident.shape
        operand = _operand_dtype(resident.codes.device).itemsize
        most = min(rows, _slice_rows(width, out_width))
        moving = most * (width * operand + max(width * ROUNDING_BYTES, out_width * torch.float32.itemsize))
        return CallBytes(width * out_width * operand + moving)

    def apply(self, x: torch.Tensor, resident: Any) -> torch.Tensor:
        if self.why_unfit(resident) is not None:
            return super().apply(x, resident)
        rows = scaled(x, resident).reshape(-1, x.shape[-1])
        y = definition(rows, resident)
        y = y if resident.bias is None else y.add_(resident.bias.to(y.dtype))
        return y.view(*x.shape[:-1], -1)


def definition(x: torch.Tensor, weight: Nvfp4Weight) -> torch.Tensor:
    """x [M, K] -> [M, N] in x's dtype; a slice of rows at a time, all by one scale of x."""
    scale = tensor_scale(x, weight)
    dtype = _operand_dtype(x.device)
    decoded = nvfp4.dequantize_unscaled(weight, dtype)
    alpha = scale * weight.tensor_scale.reshape(())
    y = torch.empty(x.shape[0], decoded.shape[0], dtype=x.dtype, device=x.device)
    step = _slice_rows(x.shape[1], decoded.shape[0])
    for start in range(0, x.shape[0], step):
        part = slice(start, start + step)
        y[part] = _sums(nvfp4.rounded_unscaled(x[part], scale, dtype), decoded).mul_(alpha)
    return y


def tensor_scale(x: torch.Tensor, weight: Nvfp4Weight) -> torch.Tensor:
    """fp32 []: the stored one of activations, or this activation's own."""
    stored = weight.input_scale
    return nvfp4.activation_scale(x) if stored is None else stored.reshape(()).float()


def _operand_dtype(device: torch.device) -> torch.dtype:
    """Both hold the operands exactly; a GPU multiplies BF16 into FP32 sums, which PyTorch's CPU has no product for."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _sums(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.float32:
        return x @ weight.t()
    return torch.mm(x, weight.t(), out_dtype=torch.float32)


def _slice_rows(width: int, out_width: int) -> int:
    return max(SLICE_ELEMENTS // max(width, out_width), 1)
