"""NVFP4 as comfy-kitchen's CUDA packer makes it, in plain torch: what `h3_kernels.nvfp4.pack` makes on a GPU.

`nvfp4.quantize` is the library's eager path, which divides; its CUDA path, built with fast math, multiplies with
reciprocals. With g the tensor's scale, m a block's largest |x|, FP32 throughout, subnormals flushed to zero:

    s      = E4M3(min((m * fl(1/6)) * rcp(g), 448))
    code   = E2M1(min(rcp(g * s), FLT_MAX) * x)          nearest, ties to even, saturating

rcp is the GPU's approximation (MUFU.RCP), within one ulp of 1/a; a CPU has the rounded 1/a, which is what `reciprocal`
is unless it is given. So this equals the GPU bit for bit wherever both reciprocals are the same (always for powers of
two) and elsewhere but for what lies within some ulps of a midpoint between two codes or two scales.

Special values are the GPU's as well: g = 0 makes scales of 448 and codes of 0, a block with Inf has scale 448, NaN is
passed over by the maximum and coded as +6. Any device, nothing is waited for. Fed by tests and by whoever has to know
on a CPU what a GPU stores; reads no files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.nn import functional as F

from h3runtime.quant import tiles
from h3runtime.quant.nvfp4 import BLOCK, E4M3_MAX

SMALLEST_NORMAL: Final = 2.0**-126
LARGEST: Final = torch.finfo(torch.float32).max
SIXTH: Final = float(torch.tensor(1 / 6))
"""The FP32 number next to 1/6."""
MIDPOINTS: Final = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""Between neighbouring sizes of E2M1; True: a value there goes up, to the even code."""


def pack(
    x: torch.Tensor,
    tensor_scale: torch.Tensor,
    reciprocal: Callable[[torch.Tensor], torch.Tensor] = torch.reciprocal,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] float, tensor_scale fp32 of one element -> codes uint8 [M, K'/2], scales E4M3 in tiles.

    K' is K rounded up to 16; the scales have `tiles.tiled_shape`. reciprocal: fp32 -> fp32, of the machine that is
    asked about.
    """
    blocks = F.pad(x, (0, -x.shape[1] % BLOCK)).float().reshape(x.shape[0], -1, BLOCK)
    scale, encode = _block_scales(blocks, tensor_scale.float().reshape(()), reciprocal)
    codes = _codes(_flushed(_flushed(blocks) * encode.unsqueeze(-1))).flatten(1)
    return (codes[:, 0::2] << 4) | codes[:, 1::2], tiles.swizzle(scale)


def _block_scales(
    blocks: torch.Tensor, tensor_scale: torch.Tensor, reciprocal: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 scales and what values are multiplied with, both [M, K'/16]."""

    def rcp(a: torch.Tensor) -> torch.Tensor:
        return _flushed(reciprocal(_flushed(a)))

    size = blocks.abs()
    amax = torch.where(size.isnan(), -1.0, size).amax(-1)
    amax = torch.where(amax < 0, torch.nan, amax)
    wanted = _flushed(_flushed(_flushed(amax) * SIXTH) * rcp(tensor_scale))
    scale = torch.fmin(wanted, wanted.new_tensor(E4M3_MAX)).clamp(min=-E4M3_MAX).to(torch.float8_e4m3fn)
    total = _flushed(_flushed(tensor_scale) * scale.float())
    return scale, torch.fmin(rcp(total), total.new_tensor(LARGEST))


def _flushed(x: torch.Tensor) -> torch.Tensor:
    """Subnormal numbers are zeros of their sign, as `.ftz` has it."""
    return torch.where(x.abs() < SMALLEST_NORMAL, torch.zeros_like(x).copysign(x), x)


def _codes(y: torch.Tensor) -> torch.Tensor:
    """E2M1 of y; NaN is +6."""
    size = y.abs()
    code = torch.zeros(y.shape, dtype=torch.uint8, device=y.device)
    for midpoint, up in MIDPOINTS:
        code += (size >= midpoint) if up else (size > midpoint)
    code |= torch.signbit(y).to(torch.uint8) << 3
    return torch.where(y.isnan(), torch.full_like(code, 7), code)
