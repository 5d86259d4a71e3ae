"""INT8 with one FP32 scale per row, no zero point, no rotation: how the encoder's embedding table is stored.

    w[n, k] = code[n, k] * scale[n]        scale[n] = max(max_k |w[n, k]| / 127, 1e-30)

(checkpoint-formats §4.1 without the rotation, §5.1.) Fed by the embedding module and the linear backends.
"""

from __future__ import annotations

import torch

from h3runtime.quant.stored import Int8Weight

SMALLEST_SCALE = 1e-30


def quantize(weight: torch.Tensor) -> Int8Weight:
    """weight [N, K] float -> codes int8 [N, K], scale fp32 [N, 1]. Raises ValueError for anything non-finite."""
    if not torch.isfinite(weight).all():
        raise ValueError("a non-finite weight can't be quantised")
    wide = weight.float()
    scale = (wide.abs().amax(dim=1, keepdim=True) / 127).clamp(min=SMALLEST_SCALE)
    codes = (wide / scale).round().clamp(-128, 127).to(torch.int8)
    return Int8Weight(codes, scale)


def dequantize_fp32(weight: Int8Weight) -> torch.Tensor:
    """fp32 [N, K]."""
    return weight.codes.float() * weight.scale


def dequantize_rows(weight: Int8Weight, rows: torch.Tensor) -> torch.Tensor:
    """rows int [...] -> fp32 [..., K]; only the rows asked for are ever decoded."""
    return weight.codes[rows].float() * weight.scale[rows]


def dequantize(weight: Int8Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    return dequantize_fp32(weight).to(dtype)
