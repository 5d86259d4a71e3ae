"""The video decoder's steps between its matrix products on CUDA, in one pass over memory each.

Checks shapes and launches `vae_kernels`; decides nothing about where it is used (`backends.vit` does). R rows of W,
tokens [R = B*S], everything contiguous and of one dtype, fp16 or fp32.

    norm        [R, W] -> [R, W]                        elements read and written: 2*R*W
    add_norm_   x in place, [R, W] normed               4*R*W
    norm_rotate [R, H, 3, D] -> q and k [2, R, H, D]    4*R*H*D
    gated       [R, 2*F] -> [R, F]                      3*R*F
    attended    [R, H*D] -> codes                       1.5*R*H*D
    codes       where asked for, a result is E4M3 with a scale a row (`Fp8Rows`): half the bytes written
    owed        a bias that the product before hasn't added: x + owed, rounded, takes the place of x
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton

from h3_kernels.vae_kernels import add_norm_kernel, attended_kernel, gated_kernel, norm_rotate_kernel

PIECE: Final = 2048
"""Elements of a row that one program of `gated` takes."""
WARP_ELEMENTS: Final = 512
"""Elements that a warp holds: 16 a thread."""
TOKEN_WARPS: Final = 4


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """codes e4m3 [R, W], scales fp32 [R]; code * scale is the value."""

    codes: torch.Tensor
    scales: torch.Tensor


Rows = torch.Tensor | Fp8Rows


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, codes: bool = False) -> Rows:
    """RMSNorm over the last dim of x [R, W]; weight [W]."""
    return _rows(x, None, None, None, weight, eps, codes)


def add_norm_(
    x: torch.Tensor,
    update: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    codes: bool = False,
    owed: torch.Tensor | None = None,
) -> Rows:
    """x += scale*update, rounded once; then its RMSNorm. x, update [R, W]; scale, weight, owed [W]."""
    assert update.shape == x.shape and update.is_contiguous() and scale.shape == weight.shape
    return _rows(x, update, owed, scale, weight, eps, codes)


def norm_rotate(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float, owed: torch.Tensor | None = None
) -> torch.Tensor:
    """qkv [R, H, 3, D] -> [2, R, H, D]: q and k, normed without weights, then rotated. cos, sin [S, n], 2n <= D; row r
    has the position r mod S. owed [3*H*D]."""
    rows, heads, parts, width = qkv.shape
    tokens, half = cos.shape
    tail = width - 2 * half
    assert parts == 3 and qkv.is_contiguous() and tail >= 0 and rows % tokens == 0
    assert cos.is_contiguous() and sin.is_contiguous() and sin.shape == cos.shape
    out = torch.empty(2, rows, heads, width, dtype=qkv.dtype, device=qkv.device)
    norm_rotate_kernel[(rows,)](
        qkv,
        qkv if owed is None else owed,
        out,
        cos,
        sin,
        tokens,
        heads,
        rows * heads * width,
        eps,
        HALF=half,
        TAIL=tail,
        OWED=owed is not None,
        HEADS=triton.next_power_of_2(heads),
        HALF_BLOCK=triton.next_power_of_2(half),
        TAIL_BLOCK=triton.next_power_of_2(max(tail, 1)),
        num_warps=TOKEN_WARPS,
        enable_fp_fusion=False,
    )
    return out


def gated(x: torch.Tensor, *, codes: bool = False, owed: torch.Tensor | None = None) -> Rows:
    """x [R, 2*F], gate then value -> silu(gate)*value [R, F]. owed [2*F]."""
    rows, width = x.shape[0], x.shape[1] // 2
    assert x.is_contiguous() and x.shape[1] % 2 == 0
    out, scales = _out(x, rows, width, codes)
    block = triton.next_power_of_2(width) if codes else PIECE
    gated_kernel[(rows, triton.cdiv(width, block))](
        x,
        x if owed is None else owed,
        out,
        scales,
        width,
        OWED=owed is not None,
        FP8=codes,
        BLOCK=block,
        INTERPRETED=_interpreted(),
        num_warps=_warps(block) if codes else 4,
        enable_fp_fusion=False,
    )
    return Fp8Rows(out, scales) if codes else out


def attended(x: torch.Tensor, head_dim: int, owed: torch.Tensor | None) -> Fp8Rows:
    """x [R, H*D]; owed [3*H*D], of which v's parts are added."""
    rows, width = x.shape
    assert x.is_contiguous() and width % head_dim == 0
    out, scales = _out(x, rows, width, codes=True)
    block = triton.next_power_of_2(width)
    attended_kernel[(rows,)](
        x,
        x if owed is None else owed,
        out,
        scales,
        width,
        OWED=owed is not None,
        HEAD=head_dim,
        BLOCK=block,
        INTERPRETED=_interpreted(),
        num_warps=_warps(block),
        enable_fp_fusion=False,
    )
    return Fp8Rows(out, scales)


def _rows(
    x: torch.Tensor,
    update: torch.Tensor | None,
    owed: torch.Tensor | None,
    scale: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    codes: bool,
) -> Rows:
    """Arguments that a switch turns off are x, which is never read in their place."""
    rows, width = x.shape
    assert x.is_contiguous() and weight.shape == (width,)
    out, scales = _out(x, rows, width, codes)
    block = triton.next_power_of_2(width)
    add_norm_kernel[(rows,)](
        x,
        x if update is None else update,
        x if owed is None else owed,
        x if scale is None else scale,
        weight,
        out,
        scales,
        width,
        eps,
        ADD=update is not None,
        OWED=owed is not None,
        FP8=codes,
        BLOCK=block,
        INTERPRETED=_interpreted(),
        num_warps=_warps(block),
        enable_fp_fusion=False,
    )
    return Fp8Rows(out, scales) if codes else out


def _out(x: torch.Tensor, rows: int, width: int, codes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What a kernel writes: rows of x's dtype, or codes; and scales, which are x where there are none."""
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn if codes else x.dtype, device=x.device)
    return out, torch.empty(rows, dtype=torch.float32, device=x.device) if codes else x


def _warps(block: int) -> int:
    return min(max(block // WARP_ELEMENTS, 1), 16)


def _interpreted() -> bool:
    return bool(triton.knobs.runtime.interpret)
