"""Signed 4-bit codes of a rotated weight, one FP32 scale per row (checkpoint-formats §2.5; `int4_tensorwise` in forks).

    w = (code * scale[n]) viewed [N, K/G, G] @ H_G        code -7..7 as packed here, -8..7 as read

codes int8 [N, K/2], two's complement, even column in the LOW nibble; scale fp32 [N]. The marker's `quant_group_size` 64
constrains K (a multiple of 64) and nothing else: scales are per row. `linear_dtype` tells how comfy-kitchen multiplies,
not how it stores. Without a group in the marker G is 256. Fed by the linear backends; the rotation is `rotation`'s.
"""

from __future__ import annotations

import torch

from h3runtime.quant import nibbles
from h3runtime.quant.rotation import LARGEST_GROUP, rotate
from h3runtime.quant.slices import row_slices
from h3runtime.quant.stored import ConvrotInt4Weight

LARGEST_CODE = 7
SMALLEST_AMAX = 1e-10
COLUMN_MULTIPLE = 64
DEFAULT_GROUP = LARGEST_GROUP


def packed_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the codes."""
    return shape[0], shape[1] // 2


def scale_shape(shape: tuple[int, int]) -> tuple[int]:
    """[N, K] -> shape of the scales."""
    return (shape[0],)


def quantize(weight: torch.Tensor, convrot: int = DEFAULT_GROUP) -> ConvrotInt4Weight:
    """weight [N, K] float -> codes and scales, rotated and rounded in FP32.

    From an FP32 weight they equal comfy-kitchen's eager `quantize_convrot_w4a4_weight` bit for bit (it computes in the
    weight's dtype). Raises ValueError for anything non-finite and for a K that isn't a multiple of 64 and of the group.
    """
    rows, columns = weight.shape
    if columns % COLUMN_MULTIPLE:
        raise ValueError(f"{columns} columns aren't a multiple of {COLUMN_MULTIPLE}")
    codes = torch.empty(packed_shape((rows, columns)), dtype=torch.int8, device=weight.device)
    scale = torch.empty(rows, dtype=torch.float32, device=weight.device)
    for part in row_slices(rows, columns):
        rotated = rotate(weight[part].float(), convrot)
        step = rotated.abs().amax(dim=1, keepdim=True).clamp(min=SMALLEST_AMAX) / LARGEST_CODE
        rounded = (rotated / step).round().clamp(-LARGEST_CODE, LARGEST_CODE)
        codes[part] = nibbles.pack(rounded.to(torch.int8) & 0xF)
        scale[part] = step.squeeze(1)
    if not torch.isfinite(scale).all():
        raise ValueError("a non-finite weight can't be quantised")
    return ConvrotInt4Weight(codes, scale, convrot)


def dequantize(weight: ConvrotInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast.

    Equals comfy-kitchen's eager `dequantize_convrot_w4a4_weight` bit for bit, whatever the dtype.
    """
    out = torch.empty(weight.shape, dtype=dtype, device=weight.codes.device)
    values = nibbles.signed_values(weight.codes.device, torch.float32)
    scale = weight.scale.reshape(-1, 1).float()
    for part in row_slices(*weight.shape):
        out[part] = rotate(nibbles.lookup(weight.codes[part], values).mul_(scale[part]), weight.convrot)
    return out


def dequantize_fp32(weight: ConvrotInt4Weight) -> torch.Tensor:
    """fp32 [N, K]."""
    return dequantize(weight, torch.float32)
