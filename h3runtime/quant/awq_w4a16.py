"""Unsigned 4-bit codes with a scale and a zero point per group of columns (checkpoint-formats §2.5).

    w[n, k] = (code[n, k] - 8) * scale[k // G, n] + zeros[k // G, n]

codes int8 [N, K/2], even column in the LOW nibble; scale and zeros [K/G, N], stored transposed, in the dtype that the
file's author computed in (BF16 or FP16); G is 64 unless their shape says otherwise. No rotation. The zero point is a
value of the weight, not a code. Fed by the linear backends. comfy-kitchen only unpacks this format (packing needs a
calibration that it leaves to others), and computes in the dtype of the scales: `dequantize_kitchen` is that rule.
"""

from __future__ import annotations

import torch

from h3runtime.quant import nibbles
from h3runtime.quant.slices import row_slices
from h3runtime.quant.stored import AwqInt4Weight

DEFAULT_GROUP = 64
LARGEST_CODE = 15
MIDDLE_CODE = 8


def packed_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the codes."""
    return shape[0], shape[1] // 2


def scale_shape(shape: tuple[int, int], group: int = DEFAULT_GROUP) -> tuple[int, int]:
    """[N, K] -> shape of the scales, and of the zeros."""
    return shape[1] // group, shape[0]


def quantize(weight: torch.Tensor, group: int = DEFAULT_GROUP, dtype: torch.dtype = torch.bfloat16) -> AwqInt4Weight:
    """weight [N, K] float -> codes, scales and zeros, from each group's range alone; the latter two in `dtype`.

    Codes are chosen for the scale and zero as stored. Raises ValueError for anything non-finite (also for a range that
    overflows `dtype`) and for a K that `group` doesn't divide.
    """
    rows, columns = weight.shape
    if columns % group or group % 2:
        raise ValueError(f"groups of {group} columns don't divide {columns} columns")
    codes = torch.empty(packed_shape((rows, columns)), dtype=torch.int8, device=weight.device)
    scale = torch.empty(rows, columns // group, dtype=dtype, device=weight.device)
    zeros = torch.empty_like(scale)
    for part in row_slices(rows, columns):
        blocks = weight[part].float().reshape(-1, columns // group, group)
        low, high = blocks.aminmax(dim=-1)
        scale[part] = (high - low) / LARGEST_CODE
        zeros[part] = low + MIDDLE_CODE * scale[part].float()
        codes[part] = nibbles.pack(_codes(blocks, scale[part], zeros[part]).flatten(1))
    if not (torch.isfinite(scale).all() and torch.isfinite(zeros).all()):
        raise ValueError("a non-finite weight can't be quantised")
    return AwqInt4Weight(codes, scale.T.contiguous(), zeros.T.contiguous())


def _codes(blocks: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Nearest codes [N, K/G, G]; where the scale is 0 every code stands for the zero point: the middle one."""
    step = scale.float().masked_fill(scale == 0, torch.inf).unsqueeze(-1)
    return ((blocks - zeros.float().unsqueeze(-1)) / step + MIDDLE_CODE).round().clamp(0, LARGEST_CODE)


def dequantize(weight: AwqInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    return _unpack(weight, torch.float32, dtype)


def dequantize_fp32(weight: AwqInt4Weight) -> torch.Tensor:
    """fp32 [N, K]; equals comfy-kitchen's layout bit for bit where the scales are FP32."""
    return _unpack(weight, torch.float32, torch.float32)


def dequantize_kitchen(weight: AwqInt4Weight) -> torch.Tensor:
    """[N, K] in the dtype of the scales, bit for bit as comfy-kitchen computes it: every step in that dtype."""
    return _unpack(weight, weight.scale.dtype, weight.scale.dtype)


def _unpack(weight: AwqInt4Weight, arithmetic: torch.dtype, dtype: torch.dtype) -> torch.Tensor:
    rows, columns = weight.shape
    out = torch.empty(rows, columns, dtype=dtype, device=weight.codes.device)
    values = nibbles.offset_values(weight.codes.device, arithmetic)
    group = columns // weight.scale.shape[0]
    for part in row_slices(rows, columns):
        blocks = nibbles.lookup(weight.codes[part], values).reshape(-1, weight.scale.shape[0], group)
        blocks = blocks.mul_(weight.scale[:, part].T.unsqueeze(-1).to(arithmetic))
        out[part] = blocks.add_(weight.zeros[:, part].T.unsqueeze(-1).to(arithmetic)).flatten(1)
    return out
