"""MXFP8: E4M3 codes, one power of two per 32 of them (checkpoint-formats §2.5).

    w[r, k] = E4M3(code[r, k]) * 2 ** (scale[r, k // 32] - 127)        a scale byte of 0 stands for 0, not 2 ** -127

codes float8_e4m3fn [N', K'], N' and K' being N and K rounded up to 32; scales one byte each, in the order of `tiles`.
A block's exponent is ceil(log2(amax / 448)), so that no code saturates; log2 is rounded to FP32, so an amax less than
2 ** -18 above 448 times a power of two may get the exponent below, and its code saturates: an error of 2 ** -18. The
scale byte 255 is NaN in the standard; comfy-kitchen reads infinity, and so do we. Fed by the linear backends.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from h3runtime.quant import tiles
from h3runtime.quant.slices import round_up, row_slices
from h3runtime.quant.stored import Mxfp8Weight

BLOCK = 32
E4M3_MAX = 448.0
BIAS = 127
MANTISSA_BITS = 23
"""Of FP32: a byte shifted this far is the float that it stands for."""


def packed_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the codes."""
    return round_up(shape[0], BLOCK), round_up(shape[1], BLOCK)


def scale_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the scales as stored."""
    rows, columns = packed_shape(shape)
    return tiles.tiled_shape(rows, columns // BLOCK)


def quantize(weight: torch.Tensor) -> Mxfp8Weight:
    """weight [N, K] float -> codes and scale bytes (uint8).

    Equal to comfy-kitchen's eager `quantize_mxfp8` bit for bit, whatever the weight's dtype. The exception: blocks
    whose largest is at most 448 * 2 ** -127 = 2.6e-36 (exponent byte 0), where the library divides by 0 and may store
    NaN codes, get codes 0. Raises ValueError for anything non-finite.
    """
    rows, columns = weight.shape
    padded_rows, padded_columns = packed_shape((rows, columns))
    codes = torch.zeros(padded_rows, padded_columns, dtype=torch.float8_e4m3fn, device=weight.device)
    scale = torch.zeros(padded_rows, padded_columns // BLOCK, dtype=torch.uint8, device=weight.device)
    for part in row_slices(rows, padded_columns):
        blocks = F.pad(weight[part].float(), (0, -columns % BLOCK)).reshape(-1, padded_columns // BLOCK, BLOCK)
        if not torch.isfinite(blocks).all():
            raise ValueError("a non-finite weight can't be quantised")
        scale[part] = _exponents(blocks.abs().amax(dim=-1))
        codes[part] = _codes(blocks, _factor(scale[part])).flatten(1)
    return Mxfp8Weight(codes, tiles.swizzle(scale), (rows, columns))


def _exponents(amax: torch.Tensor) -> torch.Tensor:
    """Bytes uint8, the shape of `amax`; 0 for a block of zeros."""
    exponent = torch.log2((amax / E4M3_MAX).clamp(min=2.0**-BIAS)).ceil().int() + BIAS
    return torch.where(amax == 0, torch.zeros_like(exponent), exponent.clamp(0, 254)).to(torch.uint8)


def _codes(blocks: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    dead = (factor == 0).unsqueeze(-1)
    scaled = blocks / factor.unsqueeze(-1).masked_fill(dead, 1.0)
    return scaled.masked_fill(dead, 0.0).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _factor(exponents: torch.Tensor) -> torch.Tensor:
    """Bytes -> the fp32 they stand for."""
    return (exponents.int() << MANTISSA_BITS).view(torch.float32)


def dequantize(weight: Mxfp8Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast; comfy-kitchen's eager `dequantize_mxfp8` bit for bit, any dtype."""
    rows, columns = weight.shape
    out = torch.empty(rows, columns, dtype=dtype, device=weight.codes.device)
    for part in row_slices(rows, weight.codes.shape[1], tiles.TILE_ROWS):
        codes = weight.codes[part].float().reshape(-1, weight.codes.shape[1] // BLOCK, BLOCK)
        stored = weight.block_scale[part.start : round_up(part.stop, tiles.TILE_ROWS)]
        factor = _factor(tiles.unswizzle(stored, codes.shape[0], codes.shape[1]))
        out[part] = (codes * factor.unsqueeze(-1)).flatten(1)[:, :columns]
    return out


def dequantize_fp32(weight: Mxfp8Weight) -> torch.Tensor:
    """fp32 [N, K]."""
    return dequantize(weight, torch.float32)
