"""NVFP4 times NVFP4 (W4A4) by comfy-kitchen: `quantize_nvfp4` of x, then its block-scaled GEMM, on Blackwell.

    x [M, K] -> codes [ru(M, 16), K/2] and E4M3 scales in tiles, by one tensor scale (dynamic, or the `input_scale`)
    y = `scaled_mm_nvfp4` cropped to [M, N], + b             alpha = s_a s_w multiplies before the rounding

Rows of padding are zeros and are cropped, so they mean nothing. The library's tensor class, which replaces a product
that fails by a decoded one without a word, is not used: what fails here is an error. Layers that aren't stored as
NVFP4, and those whose marker forbids it, are left to `dequant`, as are shapes that the GEMM doesn't take. The
definition is `nvfp4_emulated`. Fed and read as `base` says.
"""

from __future__ import annotations

from typing import Any

import torch

from h3runtime.backends.linear.base import CallBytes
from h3runtime.backends.linear.dequant import DequantLinear, scaled
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear, tensor_scale
from h3runtime.quant.slices import round_up
from h3runtime.quant.stored import Nvfp4Weight

SMALLEST_CAPABILITY = (10, 0)
WIDTH_MULTIPLE, OUT_MULTIPLE, ROW_MULTIPLE = 32, 8, 16
"""Of K, N and M (checkpoint-formats §3)."""
SMALLEST_SCALE = 1e-30
"""Of an activation of zeros, whose own scale would make the library divide 0 by 0."""


class Nvfp4Linear(Nvfp4EmulatedLinear):
    name = "nvfp4"

    def why_unavailable(self, device: torch.device) -> str | None:
        return self.why_not(linear_facts(device))

    def why_not(self, facts: LinearFacts) -> str | None:
        return facts.why_older_than(SMALLEST_CAPABILITY) or facts.why_no_kitchen()

    def why_unfit(self, stored: Any) -> str | None:
        if (why := super().why_unfit(stored)) is not None:
            return why
        if stored.codes.shape[1] * 2 % WIDTH_MULTIPLE or stored.codes.shape[0] % OUT_MULTIPLE:
            return f"{list(stored.shape)} isn't in multiples of {OUT_MULTIPLE} by {WIDTH_MULTIPLE}"
        return None

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """Codes and scales of x; nothing is decoded."""
        if self.why_unfit(resident) is not None:
            return DequantLinear.call_bytes(self, resident, rows, dtype)
        width = resident.codes.shape[1] * 2
        return CallBytes(round_up(rows, ROW_MULTIPLE) * width // 2 + round_up(rows, 128) * round_up(width // 16, 4))

    def apply(self, x: torch.Tensor, resident: Any) -> torch.Tensor:
        if self.why_unfit(resident) is not None:
            return DequantLinear.apply(self, x, resident)
        rows = scaled(x, resident).reshape(-1, x.shape[-1]).contiguous()
        y = product(rows, resident)
        y = y if resident.bias is None else y.add(resident.bias.to(y.dtype))
        return y.reshape(*x.shape[:-1], resident.shape[0])


def product(x: torch.Tensor, weight: Nvfp4Weight) -> torch.Tensor:
    """x [M, K] -> [M, N] in x's dtype, without the bias."""
    import comfy_kitchen

    scale = tensor_scale(x, weight).clamp(min=SMALLEST_SCALE)
    padded = bool(x.shape[0] % ROW_MULTIPLE or x.shape[1] % ROW_MULTIPLE)
    codes, block_scale = comfy_kitchen.quantize_nvfp4(x, scale, pad_16x=padded)
    y: torch.Tensor = comfy_kitchen.scaled_mm_nvfp4(
        codes,
        weight.codes,
        tensor_scale_a=scale,
        tensor_scale_b=weight.tensor_scale,
        block_scale_a=block_scale,
        block_scale_b=weight.block_scale,
        out_dtype=x.dtype,
    )
    return y[: x.shape[0], : weight.shape[0]]
