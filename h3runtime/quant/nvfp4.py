"""NVFP4: E2M1 codes, one E4M3 scale per 16 of them, one FP32 scale per tensor (checkpoint-formats §3).

    w[r, k] = E2M1(code[r, k]) * (tensor_scale * E4M3(scale[r, k // 16]))

Both scales multiply. codes uint8 [N', K'/2]: the even column is the HIGH nibble. N', K' are N, K rounded up to 16; the
scales are padded to [ru(N', 128), ru(K'/16, 4)] and stored in the order of `tiles`.

Plain torch, any device; the definition that faster code is compared with. Fed by the linear backends (unpack) and by
the synthesis of checkpoints (pack); it reads no files.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch.nn import functional as F

from h3runtime.quant import tiles
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.slices import round_up, row_slices
from h3runtime.quant.stored import Nvfp4Weight

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""E2M1 by code; bit 3 is the sign (checkpoint-formats §3)."""


def packed_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the codes."""
    return round_up(shape[0], 16), round_up(shape[1], BLOCK) // 2


def scale_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """[N, K] -> shape of the block scales as stored."""
    return tiles.tiled_shape(round_up(shape[0], 16), round_up(shape[1], BLOCK) // BLOCK)


def quantize(weight: torch.Tensor, tensor_scale: torch.Tensor | None = None) -> Nvfp4Weight:
    """weight [N, K] float -> codes and scales; `tensor_scale` fp32 [] replaces amax / (448 * 6).

    Codes and block scales equal comfy-kitchen's eager `quantize_nvfp4` bit for bit. An all-zero tensor (where the
    library divides 0 by 0 and stores NaN scales) gets scales and codes 0. Raises ValueError for anything non-finite.
    """
    rows, columns = weight.shape
    if not torch.isfinite(weight).all():
        raise ValueError("a non-finite weight can't be quantised")
    if tensor_scale is None:
        tensor_scale = weight.abs().amax().float() / (E4M3_MAX * E2M1_MAX)
    padded = F.pad(weight, (0, -columns % BLOCK, 0, -rows % 16))
    return Nvfp4Weight(*_packed(padded, tensor_scale), tensor_scale, (rows, columns))


def pack_rows(x: torch.Tensor, tensor_scale: torch.Tensor) -> Nvfp4Rows:
    """An activation x [M, K] by `tensor_scale`, fp32 [] -> M rows of codes; of K, what is missing to 16 is zeros.

    The host waits for nothing, so values are not looked at. The numbers are those of `rounded`.
    """
    codes, scale = [], []
    for part in row_slices(x.shape[0], round_up(x.shape[1], BLOCK), tiles.TILE_ROWS):
        made = _packed(F.pad(x[part], (0, -x.shape[1] % BLOCK)), tensor_scale)
        codes.append(made[0])
        scale.append(made[1])
    return Nvfp4Rows(torch.cat(codes), torch.cat(scale), tensor_scale, x.shape[0], x.dtype)


def _packed(x: torch.Tensor, tensor_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K], K in multiples of 16 -> codes uint8 [M, K/2] and block scales in tiles."""
    blocks = x.reshape(x.shape[0], -1, BLOCK)
    scale, total = _block_scales(blocks, tensor_scale)
    codes = _codes(blocks.float(), total.unsqueeze(-1)).reshape(x.shape)
    return (codes[:, 0::2] << 4) | codes[:, 1::2], tiles.swizzle(scale)


def rounded(x: torch.Tensor, tensor_scale: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K] -> the numbers that `quantize` followed by `dequantize` leaves of it, in x's dtype.

    For activations: any leading shape, no packing, and the host waits for nothing, so values are not looked at (a NaN
    stays one). `tensor_scale` fp32 [] replaces amax / (448 * 6), which is taken over all of x.
    """
    scale = activation_scale(x) if tensor_scale is None else tensor_scale
    values, _, total = _rounded_blocks(x, scale)
    return (values * total.unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]].to(x.dtype)


def activation_scale(x: torch.Tensor) -> torch.Tensor:
    """amax / (448 * 6) over all of x, fp32 []; the host waits for nothing and x is not copied."""
    low, high = x.aminmax()
    return torch.maximum(-low, high).float() / (E4M3_MAX * E2M1_MAX)


def rounded_unscaled(x: torch.Tensor, tensor_scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x [..., K] -> E2M1 * E4M3 of each value, without the tensor scale: what a block-scaled GEMM multiplies.

    Exact in bf16 and wider: 2 by 4 significant bits, at most 6 * 448.
    """
    values, scale, _ = _rounded_blocks(x, tensor_scale)
    return (values * scale.float().unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]].to(dtype)


def dequantize_unscaled(weight: Nvfp4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K]: E2M1 * E4M3 without the tensor scale; exact in bf16 and wider."""
    return dequantize(replace(weight, tensor_scale=torch.ones_like(weight.tensor_scale)), dtype)


def _rounded_blocks(x: torch.Tensor, tensor_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """E2M1 values fp32 [..., K'/16, 16], each block's E4M3 scale and its product with the tensor's [..., K'/16]."""
    padded = F.pad(x, (0, -x.shape[-1] % BLOCK))
    blocks = padded.reshape(*x.shape[:-1], -1, BLOCK)
    scale, total = _block_scales(blocks, tensor_scale)
    codes = _codes(blocks.float(), total.unsqueeze(-1))
    values = _pairs(torch.float32, x.device)[:16, 1]
    return F.embedding(codes.int(), values.unsqueeze(-1)).squeeze(-1), scale, total


def _block_scales(blocks: torch.Tensor, tensor_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 scales and the FP32 factor they stand for, both [N', K'/16]."""
    wanted = blocks.abs().amax(dim=-1).float() / E2M1_MAX
    ratio = torch.where(wanted == 0, torch.zeros_like(wanted), wanted / tensor_scale)
    scale = ratio.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    return scale, tensor_scale * scale.float()


def _codes(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Round x / total to E2M1, ties to the even code; a block whose factor is 0 has codes 0."""
    dead = total == 0
    y = torch.where(dead, torch.zeros_like(x), x / torch.where(dead, torch.ones_like(total), total))
    a = y.abs()
    code = (a > 0.25).to(torch.uint8)
    for tie, up in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        code += (a >= tie) if up else (a > tie)
    return code | (torch.signbit(y).to(torch.uint8) << 3)


def dequantize(weight: Nvfp4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    return _unpack(weight, torch.float32, dtype)


def dequantize_fp32(weight: Nvfp4Weight) -> torch.Tensor:
    """fp32 [N, K]; equals comfy-kitchen's eager `dequantize_nvfp4(output_type=float32)` bit for bit."""
    return _unpack(weight, torch.float32, torch.float32)


def dequantize_kitchen_bf16(weight: Nvfp4Weight) -> torch.Tensor:
    """bf16 [N, K] as comfy-kitchen's eager path rounds it: both scales cast to bf16 and multiplied there.

    Relative L2 to FP32, measured over 40 random weights (how a tensor scale happens to round decides): this one 1.6e-3
    to 4.1e-3, the single cast of `dequantize` 1.0e-3 to 2.2e-3; the two differ by 1.2e-3 to 4.8e-3.
    """
    return _unpack(weight, torch.bfloat16, torch.bfloat16)


def _unpack(weight: Nvfp4Weight, arithmetic: torch.dtype, dtype: torch.dtype) -> torch.Tensor:
    """Decode whole row tiles at a time, computing in `arithmetic`, storing in `dtype`; padding is cropped away."""
    rows, columns = weight.shape
    out = torch.empty(rows, columns, dtype=dtype, device=weight.codes.device)
    pairs = _pairs(arithmetic, weight.codes.device)
    tensor_scale = weight.tensor_scale.reshape(()).to(arithmetic)
    for part in row_slices(rows, columns, tiles.TILE_ROWS):
        codes = weight.codes[part]
        stored = weight.block_scale[part.start : round_up(part.stop, tiles.TILE_ROWS)]
        scale = tiles.unswizzle(stored, codes.shape[0], codes.shape[1] * 2 // BLOCK).view(torch.float8_e4m3fn)
        values = F.embedding(codes.int(), pairs).reshape(codes.shape[0], -1, BLOCK)
        values = values * (tensor_scale * scale.to(arithmetic)).unsqueeze(-1)
        out[part] = values.flatten(1)[:, :columns]
    return out


@cache
def _pairs(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[256, 2]: both values of every byte, high nibble first. Kept: to send them, the host waits for the device."""
    values = torch.tensor(VALUES, dtype=dtype, device=device)
    return torch.stack([values.repeat_interleave(16), values.repeat(16)], dim=1)
