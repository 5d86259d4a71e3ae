"""INT8 with one FP32 scale per row and no zero point, rotated (ConvRot) or not (checkpoint-formats §4.1, §5.1).

    scale[n] = max(max_k |r[n, k]| / 127, 1e-30)     code = clamp(round_half_even(r / scale), -128, 127)
    r = weight, or weight viewed [N, K/G, G] @ H_G^T        w = code * scale, rotated back the same way

codes int8 [N, K], scale fp32 [N, 1]. Everything is done in FP32: packed so, official files come out bit for bit. Fed by
the embedding module, the linear backends and the synthesis of checkpoints; the rotation is `rotation`'s.
"""

from __future__ import annotations

import torch

from h3runtime.quant.rotation import rotate
from h3runtime.quant.slices import row_slices
from h3runtime.quant.stored import Int8Weight

SMALLEST_SCALE = 1e-30


def packed_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the codes: the same."""
    return shape


def scale_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the scales."""
    return shape[0], 1


def quantize(weight: torch.Tensor, convrot: int | None = None) -> Int8Weight:
    """weight [N, K] float -> codes and scales; `convrot` is the size of the rotation's groups.

    From an FP32 weight they equal comfy-kitchen's eager `quantize_int8_convrot_weight` and `quantize_int8_rowwise` bit
    for bit. An FP64 weight is rotated and divided in FP64: where its values are BF16's, every sum is exact and the
    bytes are the same on every machine. Raises ValueError for anything non-finite and for a group that isn't a power of
    4 dividing K.
    """
    return _quantize(weight, convrot, torch.float64 if weight.dtype is torch.float64 else torch.float32)


def quantize_kitchen(weight: torch.Tensor, convrot: int | None = None) -> Int8Weight:
    """As comfy-kitchen packs: rotated and divided in the weight's own dtype. No published file is made so.

    Bit-equal to its eager backend for every dtype; from BF16, of the codes of a random weight, 11 % are others than
    those of `quantize` (checkpoint-formats §4.1).
    """
    return _quantize(weight, convrot, weight.dtype)


def quantize_rows(x: torch.Tensor, convrot: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] float -> codes int8 [M, K] and one scale a row, fp32 [M, 1].

    For activations (checkpoint-formats §4.1): rotated in x's own dtype, then divided and rounded in FP32. The host
    waits for nothing, so values are not looked at.
    """
    return _codes(rotate(x, convrot) if convrot else x, None, torch.float32)


def _quantize(weight: torch.Tensor, convrot: int | None, arithmetic: torch.dtype) -> Int8Weight:
    codes, scale = _codes(weight, convrot, arithmetic)
    if not torch.isfinite(scale).all():
        raise ValueError("a non-finite weight can't be quantised")
    return Int8Weight(codes, scale, convrot=convrot)


def _codes(weight: torch.Tensor, convrot: int | None, arithmetic: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.int8, device=weight.device)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=weight.device)
    for part in row_slices(rows, columns):
        wide = weight[part].to(arithmetic)
        wide = rotate(wide, convrot) if convrot else wide
        scale[part] = (wide.abs().amax(dim=1, keepdim=True).float() / 127).clamp(min=SMALLEST_SCALE)
        step = scale[part].to(arithmetic)
        step = step.masked_fill(step == 0, torch.finfo(arithmetic).tiny)
        codes[part] = (wide / step).round_().clamp_(-128, 127).to(torch.int8)
    return codes, scale


def dequantize_fp32(weight: Int8Weight) -> torch.Tensor:
    """fp32 [N, K]."""
    return dequantize(weight, torch.float32)


def dequantize_rows(weight: Int8Weight, rows: torch.Tensor) -> torch.Tensor:
    """rows int [...] -> fp32 [..., K]; only the rows asked for are ever decoded."""
    return _decode(weight.codes[rows], weight.scale[rows], weight.convrot)


def dequantize(weight: Int8Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast; comfy-kitchen's eager backend bit for bit, whatever the dtype."""
    out = torch.empty(weight.shape, dtype=dtype, device=weight.codes.device)
    for part in row_slices(*weight.shape):
        out[part] = _decode(weight.codes[part], weight.scale[part], weight.convrot)
    return out


def _decode(codes: torch.Tensor, scale: torch.Tensor, convrot: int | None) -> torch.Tensor:
    wide = codes.float().mul_(scale)
    return rotate(wide, convrot) if convrot else wide
