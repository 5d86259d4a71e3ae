"""8-bit attention for Hopper: `attention8(q, k, v)`, softmax(q k^T / sqrt(D)) v with 8-bit products.

Quantises strided BF16 views and runs `attention8_kernels`; `attention8_emulation` is the same arithmetic in plain
PyTorch. Decides nothing about when it is used (`backends.attention` does). D = 128.

    q   INT8 or E4M3, a scale for each row, which costs nothing in the loop: a row's scale meets a row's maximum anyway
    k   the same type, less its mean over S (smoothing), a scale for each block of BLOCK_N rows
    x   q k^T, exact in INT32 for INT8: at most 127*127*128 < 2^21
    p   exp2(x*scale - m + 8), E4M3: the largest is 2^8, so that what is 2^17 times smaller still counts
    v   E4M3, a scale for each channel, applied to the result; its sums are FP32 as the tensor cores make them
    out BF16

On random normal data E4M3 of p and of v leave 2.6 % each, 3.7 % together; INT8 of q and k about 1.2 % more (their sum
of squares: 3.9 %), E4M3 of q and k 3.7 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from h3_kernels.attention8_kernels import (
    attention8_kernel,
    quantize_k_kernel,
    quantize_q_kernel,
    quantize_v_kernel,
)

QkType = Literal["int8", "fp8"]
HEAD_DIM: Final = 128
E4M3_MAX: Final = 448.0
SMALLEST_SCALE: Final = 1e-30
V_ROWS: Final = 128
"""Rows of v that one program turns: a square tile."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries by keys of one step, and how it is compiled. The defaults are those of the best trial on an H200
    (performance.md: 858 TFLOP/s with FP8 q and k and no scales); three stages gave NaN there."""

    queries: int = 128
    keys: int = 256
    warps: int = 4
    stages: int = 2
    specialize: bool = True


@dataclass(frozen=True, slots=True)
class Quantized:
    """All of one call in 8 bits. P: rows padded to whole tiles, zeros there; G = B*H.

    q, k int8 or e4m3 [G*P, D]; v e4m3 [G*D, P]; q_scales fp32 [G, P], softmax scale and log2(e) in them; k_scales
    [G, P/keys]; v_scales [G, D].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scales: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor


def attention8(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, qk: QkType = "int8", tile: Tile | None = None
) -> torch.Tensor:
    """q, k, v [B, S, H, 128], unit stride inside a head, bf16 -> [B, S, H, 128] contiguous, bf16.

    Raises ValueError for other shapes. Rows, heads and batch are free; S = 0 gives an empty result.
    """
    _require(q, k, v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.numel():
        tile = tile or Tile()
        attend_quantized(quantize(q, k, v, qk, tile), out, qk, tile)
    return out


def quantize(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qk: QkType, tile: Tile) -> Quantized:
    """Three passes over the inputs, after one each for the mean of k and the channels' largest v."""
    batch, rows, heads, width = q.shape
    step = math.lcm(tile.queries, tile.keys, V_ROWS)
    padded = -(-rows // step) * step
    groups, device = batch * heads, q.device
    narrow = torch.int8 if qk == "int8" else torch.float8_e4m3fn
    made = Quantized(
        q=torch.empty(groups * padded, width, dtype=narrow, device=device),
        k=torch.empty(groups * padded, width, dtype=narrow, device=device),
        v=torch.empty(groups * width, padded, dtype=torch.float8_e4m3fn, device=device),
        q_scales=torch.empty(groups, padded, dtype=torch.float32, device=device),
        k_scales=torch.empty(groups, padded // tile.keys, dtype=torch.float32, device=device),
        v_scales=channel_scales(v),
    )
    kind = {"INT8": qk == "int8", "D": width}
    softmax_scale = math.log2(math.e) / math.sqrt(width)
    sizes = rows, heads, padded
    quantize_q_kernel[(padded // tile.queries, groups)](
        q, made.q, made.q_scales, *_strides(q), *sizes, softmax_scale, **kind, BLOCK=tile.queries, **_options(4)
    )
    quantize_k_kernel[(padded // tile.keys, groups)](
        k, key_mean(k), made.k, made.k_scales, *_strides(k), *sizes, **kind, BLOCK=tile.keys, **_options(8)
    )
    quantize_v_kernel[(padded // V_ROWS, groups)](
        v, made.v_scales, made.v, *_strides(v), *sizes, BLOCK=V_ROWS, D=width, **_options(8)
    )
    return made


def key_mean(k: torch.Tensor) -> torch.Tensor:
    """[B, S, H, D] -> fp32 [B*H, D], over S."""
    return k.mean(1, dtype=torch.float32).flatten(0, 1)


def channel_scales(v: torch.Tensor) -> torch.Tensor:
    """[B, S, H, D] -> fp32 [B*H, D]: what brings the largest value of a channel to E4M3's largest."""
    largest: torch.Tensor = torch.linalg.vector_norm(v, math.inf, 1, dtype=torch.float32)
    return (largest / E4M3_MAX).clamp(min=SMALLEST_SCALE).flatten(0, 1)


def attend_quantized(given: Quantized, out: torch.Tensor, qk: QkType, tile: Tile) -> None:
    """The kernel alone; out [B, S, H, D] is written."""
    batch, rows, heads, width = out.shape
    padded = given.v.shape[1]
    keys = [tile.keys, width]
    # The last whole tile of keys may be all padding: queries and keys needn't be in the same number of blocks.
    blocks = -(-rows // tile.keys)
    attention8_kernel[(-(-rows // tile.queries), batch * heads)](
        TensorDescriptor.from_tensor(given.q, [tile.queries, width]),
        TensorDescriptor.from_tensor(given.k, keys),
        TensorDescriptor.from_tensor(given.v, keys[::-1]),
        TensorDescriptor.from_tensor(given.q_scales.view(-1), [tile.queries]),
        given.k_scales[:, :blocks].contiguous(),
        given.v_scales,
        out,
        *_strides(out),
        rows,
        heads,
        padded,
        blocks,
        INT8=qk == "int8",
        BLOCK_M=tile.queries,
        BLOCK_N=tile.keys,
        D=width,
        STAGES=tile.stages,
        SPECIALIZE=tile.specialize,
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


def _options(warps: int) -> dict[str, int | bool]:
    return {"INTERPRETED": _interpreted(), "num_warps": warps, "enable_fp_fusion": False}


def _interpreted() -> bool:
    return bool(triton.knobs.runtime.interpret)
