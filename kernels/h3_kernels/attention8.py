"""8-bit attention for Hopper: `attention8(q, k, v)`, softmax(q k^T / sqrt(D)) v with 8-bit products.

Quantises strided BF16 views (`attention8_quantize`) and runs one of two kernels with the same arithmetic,
`attention8_hopper` (Gluon, for SM 9.0) or `attention8_kernels` (plain Triton, any tile); `attention8_emulation` is that
arithmetic in plain PyTorch. Decides nothing about when it is used (`backends.attention` does). D = 128.

    q   INT8, a scale for each row
    k   INT8, less its mean over S (smoothing), which moves no softmax; a scale for each block of keys
    x   q k^T, exact in INT32: at most 127*127*128 < 2^21
    p   exp2(x*scale - m + 8), E4M3: the largest is 2^8, so that what is 2^17 times smaller still counts
    v   E4M3, less its channels' means over S; a scale for each channel. The result gets the means again, less those of
        the codes, so that v's rounding moves no average
    out BF16

On random normal data E4M3 of p and of v leave 2.6 % each, 3.7 % together, INT8 of q and k about 1.2 % more (their sum
of squares: 3.9 %). The tensor cores keep 14 bits of an FP8 product's running sum, so they add up one block of keys at
most: with the sum of all left to them, 9,300 keys of h3-nano had three times the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from h3_kernels.attention8_kernels import attention8_kernel
from h3_kernels.attention8_quantize import (
    centre_kernel,
    quantize_k_kernel,
    quantize_q_kernel,
    quantize_v_kernel,
    settle_kernel,
    statistics_kernel,
)

HEAD_DIM: Final = 128
ROWS_OF_BLOCK: Final = 128
"""Rows of q and of v that one program quantises."""
ROWS_OF_CHUNK: Final = 1024
"""Rows of k and v whose statistics one program takes."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries by keys of one step of the kernel. `plain`: the kernel in plain Triton, in so many warps and stages,
    which is also what the interpreter runs; otherwise the one for Hopper, which has this tile alone."""

    queries: int = 128
    keys: int = 256
    plain: bool = False
    warps: int = 8
    stages: int = 2


@dataclass(frozen=True, slots=True)
class Quantized:
    """All of one call in 8 bits. P: rows padded to whole tiles, zeros there; G = B*H.

    q, k int8 [G*P, D]; v e4m3 [G*D, P], keys in their own order; q_scales fp32 [G, P], softmax scale and log2(e) in
    them; k_scales [G, blocks of keys that hold any]; v_scales, v_mean [G, D].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scales: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor
    v_mean: torch.Tensor


@dataclass(frozen=True, slots=True)
class Statistics:
    """fp32 [B*H, D] each, over S: what the quantisers take off k and v, and v's scales after that."""

    k_mean: torch.Tensor
    v_mean: torch.Tensor
    v_scales: torch.Tensor


def attention8(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, tile: Tile | None = None) -> torch.Tensor:
    """q, k, v [B, S, H, 128], unit stride inside a head, bf16 -> [B, S, H, 128] contiguous, bf16.

    Raises ValueError for other shapes. Rows, heads and batch are free; S = 0 gives an empty result.
    """
    _require(q, k, v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.numel():
        tile = tile or Tile()
        attend_quantized(quantize(q, k, v, tile), out, tile)
    return out


def quantize(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile: Tile) -> Quantized:
    """One pass over k and v for `statistics`, then one over each input. v_mean: less the codes' own."""
    batch, rows, heads, width = q.shape
    step = math.lcm(tile.queries, tile.keys, ROWS_OF_BLOCK)
    padded = -(-rows // step) * step
    groups, blocks = batch * heads, -(-rows // tile.keys)
    found = statistics(k, v)
    made = Quantized(
        q=q.new_empty(groups * padded, width, dtype=torch.int8),
        k=q.new_empty(groups * padded, width, dtype=torch.int8),
        v=q.new_empty(groups * width, padded, dtype=torch.float8_e4m3fn),
        q_scales=q.new_empty(groups, padded, dtype=torch.float32),
        k_scales=q.new_empty(groups, blocks, dtype=torch.float32),
        v_scales=found.v_scales,
        v_mean=found.v_mean,
    )
    sizes = rows, heads, padded
    softmax_scale = math.log2(math.e) / math.sqrt(width)
    grid = groups, padded // ROWS_OF_BLOCK
    quantize_q_kernel[grid](
        q, made.q, made.q_scales, *_strides(q), *sizes, softmax_scale, BLOCK=ROWS_OF_BLOCK, D=width, **_exactly(8)
    )
    quantize_k_kernel[(groups, padded // tile.keys)](
        k, found.k_mean, made.k, made.k_scales, *_strides(k), *sizes, blocks, BLOCK=tile.keys, D=width, **_exactly(16)
    )
    views = v, found.v_mean, found.v_scales, made.v, *_strides(v)
    kind = {"D": width, "INTERPRETED": _interpreted()}
    quantize_v_kernel[grid](*views, *sizes, BLOCK=ROWS_OF_BLOCK, **kind, **_exactly(4))
    centre = made.v, made.v_mean, made.v_scales, rows, padded
    centre_kernel[(groups * width // 8,)](*centre, CHANNELS=8, BLOCK=1024, **_exactly(4))
    return made


def statistics(k: torch.Tensor, v: torch.Tensor) -> Statistics:
    batch, rows, heads, width = k.shape
    groups, chunks = batch * heads, -(-rows // ROWS_OF_CHUNK)
    pieces = k.new_empty(groups, chunks, 4, width, dtype=torch.float32)
    made = Statistics(*(k.new_empty(groups, width, dtype=torch.float32) for _ in range(3)))
    views = k, v, pieces, *_strides(k), *_strides(v)
    constants = {"CHUNK": ROWS_OF_CHUNK, "BLOCK": 16, "STAGES": 3, "D": width}
    statistics_kernel[(groups, chunks)](*views, rows, heads, **constants, **_exactly(4))
    settled = made.k_mean, made.v_mean, made.v_scales
    settle_kernel[(groups,)](pieces, *settled, rows, chunks, BLOCK=32, D=width, **_exactly(8))
    return made


def attend_quantized(given: Quantized, out: torch.Tensor, tile: Tile) -> None:
    """The kernel alone; out [B, S, H, D] is written."""
    batch, rows, heads, width = out.shape
    scales = given.q_scales, given.k_scales, given.v_scales, given.v_mean
    sizes = *_strides(out), rows, heads, given.v.shape[1], given.k_scales.shape[1]
    grid = -(-rows // tile.queries), batch * heads
    if not (tile.plain or _interpreted()):
        # Imported here: Gluon has no interpreter.
        from h3_kernels.attention8_hopper import attend

        attend(grid, (given.q, given.k, given.v), scales, out, sizes)
        return
    keys = [tile.keys, width]
    attention8_kernel[grid](
        TensorDescriptor.from_tensor(given.q, [tile.queries, width]),
        TensorDescriptor.from_tensor(given.k, keys),
        TensorDescriptor.from_tensor(given.v, keys[::-1]),
        *scales,
        out,
        *sizes,
        BLOCK_M=tile.queries,
        BLOCK_N=tile.keys,
        D=width,
        INTERPRETED=_interpreted(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _require(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or x.shape != q.shape or x.shape[3] != HEAD_DIM or x.stride(3) != 1:
            raise ValueError(f"{name}: {tuple(x.shape)}, strides {x.stride()} (want [B, S, H, {HEAD_DIM}] like q)")
        if x.dtype != torch.bfloat16:
            raise ValueError(f"{name}: {x.dtype} (want torch.bfloat16)")


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _exactly(warps: int) -> dict[str, Any]:
    """Rounded where the emulation rounds: no multiplication fused into an addition."""
    return {"num_warps": warps, "enable_fp_fusion": False}


def _interpreted() -> bool:
    return bool(triton.knobs.runtime.interpret)
