"""The fused producers on CUDA: norms, modulation, rotation, SwiGLU and gates, in one pass over memory each.

Checks shapes, picks tiles and launches `producer_kernels`; decides nothing about where it is used (`backends.fused`
does). S packed rows, N rows of a modulation table; x, tables and weights of one dtype, bf16 or fp32.

    norm_modulate   [S, W]        -> [S, W]                      bytes: S*W read, S*W written
    norm_rotate_    [S, 3, H, D]  q and k in place               4*S*H*D
    swiglu_         [S, 2*F]      gate half in place             3*S*F
    add_gated_      [S, W]        x in place                     3*S*W
    add_gated_norm_modulate  both in one pass: x in place and [S, W]         4*S*W
    quantize_by     [S, W]        -> E4M3 codes by one scale
    *_fp8           the same, out as E4M3 codes [S, W] and fp32 scales [S]: code * scale = value

Each step of a fused kernel can be had alone (`norm`, `modulate`, `quantize_rows`, `norm_only_`,
`rotate_only_`): the same device code
with the other steps off, so a test can hold both together bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton

from h3_kernels.producer_kernels import (
    add_gated_kernel,
    norm_modulate_kernel,
    norm_rotate_kernel,
    quantize_kernel,
    swiglu_fp8_kernel,
    swiglu_kernel,
)

PIECE: Final = 2048
"""Elements of a row that one program of an elementwise kernel takes."""
WARP_BYTES: Final = 512
"""Of a tile that a warp holds: 16 a thread."""
REGISTERS: Final = 64
"""Of a thread of SwiGLU to FP8: by itself the compiler takes 99 and leaves two programs a multiprocessor, 1.16 ms at
37,810 rows on an H200; so 0.92."""
ROW_WARP_ELEMENTS: Final = 2048
"""Elements that a warp holds of a row in registers, at most, packed as they are stored."""


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """codes e4m3 [S, W], scales fp32 [S]; code * scale is the value."""

    codes: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True, slots=True)
class Modulation:
    """shift, scale [N, W], unit stride inside a row and one stride between rows; index int [S], rows of them."""

    shift: torch.Tensor
    scale: torch.Tensor
    index: torch.Tensor


@dataclass(frozen=True, slots=True)
class Residual:
    """update [S, W], gate [N, W], unit stride inside a row; gate's rows as far apart as those of the modulation."""

    update: torch.Tensor
    gate: torch.Tensor


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dim of x [S, W]; weight [W]."""
    return _row_kernel(x, weight, eps, None)


def modulate(x: torch.Tensor, by: Modulation) -> torch.Tensor:
    """x*(1 + scale) + shift, a copy."""
    return _row_kernel(x, None, 0.0, by)


def norm_modulate(x: torch.Tensor, weight: torch.Tensor, eps: float, by: Modulation) -> torch.Tensor:
    return _row_kernel(x, weight, eps, by)


def norm_modulate_fp8(x: torch.Tensor, weight: torch.Tensor, eps: float, by: Modulation) -> Fp8Rows:
    return _fp8_row_kernel(x, weight, eps, by)


def add_gated_norm_modulate(
    x: torch.Tensor, residual: Residual, weight: torch.Tensor, eps: float, by: Modulation
) -> torch.Tensor:
    """x += update*gate[index], in place; what `norm_modulate` makes of it is returned."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_rows(x, weight, eps, by, out, None, residual)
    return out


def add_gated_norm_modulate_fp8(
    x: torch.Tensor, residual: Residual, weight: torch.Tensor, eps: float, by: Modulation
) -> Fp8Rows:
    made = _fp8_rows(x.shape[0], x.shape[1], x.device)
    _launch_rows(x, weight, eps, by, x, made, residual)
    return made


def quantize_rows(x: torch.Tensor) -> Fp8Rows:
    """x [S, W], unit stride inside a row -> E4M3 by each row's largest value, as `quant.fp8` does by a tensor's."""
    return _fp8_row_kernel(x, None, 0.0, None)


def quantize_by(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x [S, W], unit stride inside a row, scale fp32 [] -> E4M3 codes [S, W], as `quant.fp8.codes_of` has them."""
    assert x.stride(1) == 1 and scale.numel() == 1
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    grid = (x.shape[0], triton.cdiv(x.shape[1], PIECE))
    if x.shape[0]:
        quantize_kernel[grid](x, codes, scale, x.stride(0), x.shape[1], BLOCK=PIECE, num_warps=4, **_options())
    return codes


def norm_rotate_(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
) -> None:
    """q and k of qkv [S, 3, H, D]; cos, sin [S, 3n] contiguous, or None: no rotation."""
    half = qkv.shape[3] // 2 if cos is None else cos.shape[1]
    _qk_kernel(qkv, q_weight, k_weight, eps, cos, sin, half, normed=True)


def norm_only_(qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float, half: int) -> None:
    """half: of the dims that turn afterwards; it decides the order in which squares are added."""
    _qk_kernel(qkv, q_weight, k_weight, eps, None, None, half, normed=True)


def rotate_only_(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    _qk_kernel(qkv, qkv, qkv, 0.0, cos, sin, cos.shape[1], normed=False)


def swiglu_(x: torch.Tensor) -> torch.Tensor:
    """x [S, 2*F] -> its first half [S, F], a view, which now holds silu(gate)*value."""
    width = _half_width(x)
    grid = (x.shape[0], triton.cdiv(width, PIECE))
    if x.shape[0]:
        swiglu_kernel[grid](x, x.stride(0), width, BLOCK=PIECE, num_warps=4, **_options())
    return x[:, :width]


def swiglu_fp8(x: torch.Tensor) -> Fp8Rows:
    width = _half_width(x)
    made = _fp8_rows(x.shape[0], width, x.device)
    if x.shape[0]:
        swiglu_fp8_kernel[(x.shape[0],)](
            x, made.codes, made.scales, x.stride(0), width, **_chunks(width, x.dtype), **_options(), maxnreg=REGISTERS
        )
    return made


def add_gated_(x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x += update*gate[index], rounded once; x, update [S, W], gate [N, W]."""
    assert x.shape == update.shape and gate.shape[1] == x.shape[1] and index.shape[0] == x.shape[0]
    assert x.stride(1) == update.stride(1) == gate.stride(1) == 1, "unit stride inside a row"
    grid = (x.shape[0], triton.cdiv(x.shape[1], PIECE))
    if x.shape[0]:
        add_gated_kernel[grid](
            x,
            update,
            gate,
            index,
            x.stride(0),
            update.stride(0),
            gate.stride(0),
            x.shape[1],
            BLOCK=PIECE,
            num_warps=4,
            **_options(),
        )
    return x


def _row_kernel(x: torch.Tensor, weight: torch.Tensor | None, eps: float, by: Modulation | None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_rows(x, weight, eps, by, out, None)
    return out


def _fp8_row_kernel(x: torch.Tensor, weight: torch.Tensor | None, eps: float, by: Modulation | None) -> Fp8Rows:
    made = _fp8_rows(x.shape[0], x.shape[1], x.device)
    _launch_rows(x, weight, eps, by, x, made)
    return made


def _launch_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    by: Modulation | None,
    out: torch.Tensor,
    fp8: Fp8Rows | None,
    residual: Residual | None = None,
) -> None:
    """Arguments that a switch turns off are x, which is never read in their place."""
    rows, width = x.shape
    assert x.stride(1) == 1 and (weight is None or weight.shape == (width,))
    if residual is not None:
        assert by is not None and residual.update.shape == x.shape and residual.update.stride(1) == 1
        assert residual.gate.shape == by.shift.shape and residual.gate.stride() == by.shift.stride()
    if by is not None:
        assert by.shift.shape == by.scale.shape == (by.shift.shape[0], width) and by.index.shape == (rows,)
        assert by.shift.stride() == by.scale.stride() and by.shift.stride(1) == 1
    if not rows:
        return
    norm_modulate_kernel[(rows,)](
        x,
        out,
        x if fp8 is None else fp8.codes,
        x if fp8 is None else fp8.scales,
        x if weight is None else weight,
        x if by is None else by.shift,
        x if by is None else by.scale,
        x if by is None else by.index,
        x if residual is None else residual.update,
        x if residual is None else residual.gate,
        x.stride(0),
        0 if residual is None else residual.update.stride(0),
        0 if by is None else by.shift.stride(0),
        width,
        eps,
        NORM=weight is not None,
        MODULATE=by is not None,
        RESIDUAL=residual is not None,
        FP8=fp8 is not None,
        **_chunks(width, x.dtype),
        **_options(),
    )


def _qk_kernel(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    half: int,
    *,
    normed: bool,
) -> None:
    rows, parts, heads, width = qkv.shape
    tail = width - 2 * half
    assert parts == 3 and qkv.stride(3) == 1 and tail >= 0
    assert cos is None or (sin is not None and cos.is_contiguous() and sin.is_contiguous() and len(cos) == rows)
    tile = triton.next_power_of_2(heads) * triton.next_power_of_2(half)
    if not rows:
        return
    norm_rotate_kernel[(rows, 2)](
        qkv,
        q_weight,
        k_weight,
        qkv if cos is None else cos,
        qkv if sin is None else sin,
        qkv.stride(0),
        qkv.stride(1),
        qkv.stride(2),
        heads,
        eps,
        HALF=half,
        TAIL=tail,
        NORM=normed,
        ROTATE=cos is not None,
        HEADS=triton.next_power_of_2(heads),
        HALF_BLOCK=triton.next_power_of_2(half),
        TAIL_BLOCK=triton.next_power_of_2(max(tail, 1)),
        num_warps=_warps(tile, qkv.dtype),
        **_options(),
    )


def _half_width(x: torch.Tensor) -> int:
    assert x.dim() == 2 and x.stride(1) == 1 and x.shape[1] % 2 == 0
    return x.shape[1] // 2


def _fp8_rows(rows: int, width: int, device: torch.device) -> Fp8Rows:
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=device)
    return Fp8Rows(codes, torch.empty(rows, dtype=torch.float32, device=device))


def _chunks(width: int, dtype: torch.dtype) -> dict[str, int]:
    """How a program takes a row: chunks of 16 bytes a thread, all of them in registers."""
    warps = min(max(triton.next_power_of_2(width) // ROW_WARP_ELEMENTS, 1), 8)
    chunk = warps * WARP_BYTES // dtype.itemsize
    return {"CHUNK": chunk, "CHUNKS": triton.cdiv(width, chunk), "num_warps": warps}


def _warps(elements: int, dtype: torch.dtype) -> int:
    """So many that a thread has 16 bytes of a tile: then parts of other widths lie in the same threads."""
    return min(max(elements * dtype.itemsize // WARP_BYTES, 1), 16)


def _options() -> dict[str, bool]:
    """No contraction: a product that feeds a sum is rounded first, as the definition has it."""
    return {"INTERPRETED": bool(triton.knobs.runtime.interpret), "enable_fp_fusion": False}
