"""Weights that are decoded once, at load: what `dequant` makes at every call, kept.

    resident_bf16   BF16 GEMM on the kept BF16 weight. Bit-identical to `dequant` for BF16 activations: the same weight,
                    the same GEMM.
    fp32            the same BF16 numbers, multiplied in FP32 and rounded once. For a CPU that multiplies BF16 in
                    software: products are exact either way, so only the order of the additions differs (of a thousand
                    results all but one or none are the same), but not by nothing: it is never taken unasked.

Both keep the same form, so that one serves in the other's place. Fed and read as `base` says. The price is memory: 3.6
times that of NVFP4. Which of the two is faster, measured on one core of a Xeon with AMX at 600x256x768, in GFLOP/s (the
instruction set held down by oneDNN's own switch): AMX 1118 and 123, AVX-512 BF16 81 and 112, AVX-512 19 and 131, AVX2 6
and 140.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from h3runtime.backends.linear.base import STORED, CallBytes
from h3runtime.backends.linear.dequant import BF16, DequantLinear, dense, moved, scaled
from h3runtime.quant.stored import PlainWeight, StoredWeight


class ResidentBf16Linear(DequantLinear):
    """For activations of another dtype the kept BF16 weight is cast, which `dequant` would decode anew."""

    name = "resident_bf16"

    def form(self, stored: StoredWeight) -> str:
        return STORED if _is_bf16(stored) else BF16

    def resident_bytes(self, stored_format: str, shape: tuple[int, int], stored_bytes: int) -> int:  # noqa: ARG002
        return shape[0] * shape[1] * torch.bfloat16.itemsize

    def prepare(self, stored: StoredWeight, device: torch.device) -> Any:
        """Decoded on `device`."""
        there = moved(stored, device)
        if _is_bf16(there):
            return there
        scale = getattr(there, "pre_quant_scale", None)
        return PlainWeight(dense(there, torch.bfloat16), there.bias, pre_quant_scale=scale)


class Fp32Linear(ResidentBf16Linear):
    name = "fp32"
    grade = "validated"

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """x, the weight and the result in FP32."""
        if dtype == torch.float32:
            return super().call_bytes(resident, rows, dtype)
        out_width, width = resident.shape
        return CallBytes(torch.float32.itemsize * (rows * (width + out_width) + width * out_width))

    def apply(self, x: torch.Tensor, resident: Any) -> torch.Tensor:
        bias = None if resident.bias is None else resident.bias.to(x.dtype).float()
        weight = dense(resident, x.dtype).float()
        return F.linear(scaled(x, resident).float(), weight, bias).to(x.dtype)


def _is_bf16(stored: StoredWeight) -> bool:
    return isinstance(stored, PlainWeight) and stored.weight.dtype is torch.bfloat16
