"""The video decoder's steps between its matrix products on CUDA, in one pass over memory each.

Checks shapes and launches `vae_kernels`; decides nothing about where it is used (`backends.vit` does). R rows of W,
tokens [R = B*S], everything contiguous and of one dtype, fp16 or fp32.

    norm        [R, W] -> [R, W]                        elements read and written: 2*R*W
    add_norm_   x in place, [R, W] normed               4*R*W
    norm_rotate [R, H, 3, D] -> q and k [2, R, H, D]    4*R*H*D
    gated       [R, 2*F] -> [R, F]                      3*R*F
"""

from __future__ import annotations

from typing import Final

import torch
import triton

from h3_kernels.vae_kernels import add_norm_kernel, gated_kernel, norm_rotate_kernel

PIECE: Final = 2048
"""Elements of a row that one program of `gated` takes."""
WARP_ELEMENTS: Final = 512
"""Elements that a warp holds: 16 a thread."""
TOKEN_WARPS: Final = 4


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dim of x [R, W]; weight [W]."""
    return _rows(x, None, None, weight, eps)


def add_norm_(
    x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """x += scale*update, rounded once; then its RMSNorm. x, update [R, W]; scale, weight [W]."""
    assert update.shape == x.shape and update.is_contiguous() and scale.shape == weight.shape
    return _rows(x, update, scale, weight, eps)


def norm_rotate(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
    """qkv [R, H, 3, D] -> [2, R, H, D]: q and k, normed without weights, then rotated. cos, sin [S, n], 2n <= D; row r
    has the position r mod S."""
    rows, heads, parts, width = qkv.shape
    tokens, half = cos.shape
    tail = width - 2 * half
    assert parts == 3 and qkv.is_contiguous() and tail >= 0 and rows % tokens == 0
    assert cos.is_contiguous() and sin.is_contiguous() and sin.shape == cos.shape
    out = torch.empty(2, rows, heads, width, dtype=qkv.dtype, device=qkv.device)
    norm_rotate_kernel[(rows,)](
        qkv,
        out,
        cos,
        sin,
        tokens,
        heads,
        rows * heads * width,
        eps,
        HALF=half,
        TAIL=tail,
        HEADS=triton.next_power_of_2(heads),
        HALF_BLOCK=triton.next_power_of_2(half),
        TAIL_BLOCK=triton.next_power_of_2(max(tail, 1)),
        num_warps=TOKEN_WARPS,
        enable_fp_fusion=False,
    )
    return out


def gated(x: torch.Tensor) -> torch.Tensor:
    """x [R, 2*F], gate then value -> silu(gate)*value [R, F]."""
    rows, width = x.shape[0], x.shape[1] // 2
    assert x.is_contiguous() and x.shape[1] % 2 == 0
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    grid = (rows, triton.cdiv(width, PIECE))
    interpreted = bool(triton.knobs.runtime.interpret)
    gated_kernel[grid](x, out, width, BLOCK=PIECE, INTERPRETED=interpreted, num_warps=4, enable_fp_fusion=False)
    return out


def _rows(
    x: torch.Tensor, update: torch.Tensor | None, scale: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Arguments that a switch turns off are x, which is never read in their place."""
    rows, width = x.shape
    assert x.is_contiguous() and weight.shape == (width,)
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    add_norm_kernel[(rows,)](
        x,
        x if update is None else update,
        x if scale is None else scale,
        weight,
        out,
        width,
        eps,
        ADD=update is not None,
        BLOCK=block,
        num_warps=min(max(block // WARP_ELEMENTS, 1), 16),
        enable_fp_fusion=False,
    )
    return out
