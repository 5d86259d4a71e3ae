"""8-bit block-sparse attention for Hopper: each 128 queries over the tiles of 64 keys that weigh most for them.

The arithmetic is that of `attention8` but for k's scale, one for each head; `sparse8_emulation` is the same in plain
PyTorch. What order the rows lie in is given (`order`: the row at each place); this knows no geometry and no packed
sequence. Of S places the first `blocks` * 128 choose and can be left out, tile by tile; the others are exact: their
queries read everything, and all queries read their keys.

    quantise    q, k, v read at their places -> codes, scales, means of tiles           `sparse8_quantize`
    keep        means -> the `count` tiles of most weight for every block               `sparse8_kernels`
    attend      turns of four tiles; the exact blocks of all heads first                `sparse8_hopper` or plain Triton

P of a masked key is 0. Only the last turn of a list has any: every tile but the last exact one is whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
import triton

from h3_kernels.attention8 import _exactly, _interpreted, _require, _strides
from h3_kernels.sparse8_kernels import attention_kernel, keep_kernel
from h3_kernels.sparse8_quantize import (
    centre_kernel,
    quantize_keys_kernel,
    quantize_q_kernel,
    settle_kernel,
    statistics_kernel,
)

TILE: Final = 64
QUERIES: Final = 128
KEYS: Final = 256
ROWS_OF_CHUNK: Final = 1024
"""Rows of k and v whose statistics one program takes."""


@dataclass(frozen=True, slots=True)
class Launch:
    """plain: the kernel in plain Triton, in so many warps and stages; otherwise the one for Hopper."""

    plain: bool = False
    warps: int = 8
    stages: int = 2


@dataclass(frozen=True, slots=True)
class Quantized:
    """All of one call in 8 bits. P: S padded to whole blocks of 128, codes 0 there; T = P / 64; G = B*H.

    q, k int8 [G*P, D]; v e4m3 [G*T*D, 64], keys of a tile in their own order; q_scales fp32 [G, P], softmax scale and
    log2(e) in them; k_scales [G]; v_scales, v_mean [G, D]; q_means, k_means [G, 2*blocks, D], of tiles.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scales: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor
    v_mean: torch.Tensor
    q_means: torch.Tensor
    k_means: torch.Tensor


@dataclass(frozen=True, slots=True)
class Lists:
    """kept int32 [G, blocks, whole turns]: tiles that hold `keys` keys, and what fills the last turn."""

    kept: torch.Tensor
    keys: int


def attention8_sparse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    order: torch.Tensor,
    blocks: int,
    count: int,
    launch: Launch | None = None,
) -> torch.Tensor:
    """q, k, v [B, S, H, 128], unit stride inside a head, bf16; order int32 [S], a permutation -> [B, S, H, 128].

    blocks: of 128 places that choose; each keeps `count` of the 2*blocks tiles. ValueError for other shapes.
    """
    _require(q, k, v)
    rows = q.shape[1]
    if order.shape != (rows,) or order.dtype != torch.int32 or not order.is_contiguous():
        raise ValueError(f"order: {order.dtype} {tuple(order.shape)} (want contiguous int32 [{rows}])")
    tiles = blocks * QUERIES // TILE
    if blocks < 0 or blocks * QUERIES > rows or not min(tiles, 1) <= count <= tiles:
        raise ValueError(f"blocks {blocks}, count {count}: (want at most {rows // QUERIES}, and a count of 1..{tiles})")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.numel():
        made = quantize(q, k, v, order, blocks)
        attend_quantized(made, order, keep(made.q_means, made.k_means, count, rows), out, launch or Launch())
    return out


def quantize(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, order: torch.Tensor, blocks: int) -> Quantized:
    batch, rows, heads, width = q.shape
    padded = -(-rows // QUERIES) * QUERIES
    groups, tiles, choosing = batch * heads, padded // TILE, blocks * QUERIES // TILE
    k_mean = _fp32(q, groups, width)
    made = Quantized(
        q=q.new_empty(groups * padded, width, dtype=torch.int8),
        k=q.new_empty(groups * padded, width, dtype=torch.int8),
        v=q.new_empty(groups * tiles * width, TILE, dtype=torch.float8_e4m3fn),
        q_scales=_fp32(q, groups, padded),
        k_scales=_fp32(q, groups),
        v_scales=_fp32(q, groups, width),
        v_mean=_fp32(q, groups, width),
        q_means=_fp32(q, groups, choosing, width),
        k_means=_fp32(q, groups, choosing, width),
    )
    _statistics(k, v, k_mean, made)
    q_sizes = *_strides(q), rows, heads, padded, blocks, _softmax_scale(width)
    queries = q, order, made.q, made.q_scales, made.q_means
    quantize_q_kernel[(groups, padded // QUERIES)](*queries, *q_sizes, BLOCK=QUERIES, D=width, **_exactly(8))
    v_sums = _fp32(q, groups, tiles, width)
    scales = k_mean, made.k_scales, made.v_mean, made.v_scales
    results = made.k, made.v, made.k_means, v_sums
    k_sizes = *_strides(k), *_strides(v), rows, heads, padded, choosing
    interpreted = {"INTERPRETED": _interpreted()}
    keys = k, v, order, *scales, *results, *k_sizes
    quantize_keys_kernel[(groups, tiles)](*keys, D=width, **interpreted, **_exactly(4))
    centre_kernel[(groups,)](v_sums, made.v_mean, made.v_scales, rows, tiles, BLOCK=64, D=width, **_exactly(8))
    return made


def _softmax_scale(width: int) -> float:
    return math.log2(math.e) / math.sqrt(width)


def _fp32(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _statistics(k: torch.Tensor, v: torch.Tensor, k_mean: torch.Tensor, made: Quantized) -> None:
    """Means and scales of k and v, before the codes'."""
    batch, rows, heads, width = k.shape
    groups, chunks = batch * heads, -(-rows // ROWS_OF_CHUNK)
    pieces = _fp32(k, groups, chunks, 6, width)
    constants = {"CHUNK": ROWS_OF_CHUNK, "BLOCK": 16, "STAGES": 3, "D": width}
    views = k, v, pieces, *_strides(k), *_strides(v)
    statistics_kernel[(groups, chunks)](*views, rows, heads, **constants, **_exactly(4))
    settled = k_mean, made.k_scales, made.v_mean, made.v_scales
    settle_kernel[(groups,)](pieces, *settled, rows, chunks, BLOCK=32, D=width, **_exactly(8))


def keep(q_means: torch.Tensor, k_means: torch.Tensor, count: int, rows: int) -> Lists:
    """Means [G, 2*blocks, D] -> the lists: the `count` tiles of most weight in rising order, of equal ones the first;
    then the exact tiles. Weight: a softmax of q_mean k_mean^T / sqrt(D) in fp32, of both tiles of a block together."""
    groups, tiles, width = k_means.shape
    blocks, last = tiles * TILE // QUERIES, -(-rows // TILE) - 1
    keys = count * TILE + rows - tiles * TILE
    length = -(-keys // KEYS) * (KEYS // TILE)
    kept = torch.empty(groups, blocks, length, dtype=torch.int32, device=q_means.device)
    if blocks:
        scores = q_means @ k_means.transpose(1, 2)
        sizes = tiles, blocks, count, tiles, last, length, _softmax_scale(width)
        keep_kernel[(blocks, groups)](scores, kept, *sizes, WIDTH=triton.next_power_of_2(tiles), num_warps=4)
    return Lists(kept, keys)


def attend_quantized(
    given: Quantized, order: torch.Tensor, lists: Lists, out: torch.Tensor, launch: Launch | None = None
) -> None:
    """The attention alone; out [B, S, H, D] is written."""
    launch = launch or Launch()
    _, rows, heads, width = out.shape
    groups, blocks, length = lists.kept.shape
    padded = given.q_scales.shape[1]
    exact = padded // QUERIES - blocks
    tensors = given.q_scales, given.k_scales, given.v_scales, given.v_mean, order, lists.kept, out
    sizes = *_strides(out), rows, heads, padded, blocks, exact, groups, length, lists.keys
    grid = (groups * (blocks + exact),)
    codes = given.q, given.k, given.v
    if not (launch.plain or _interpreted()):
        # Imported here: Gluon has no interpreter.
        from h3_kernels.sparse8_hopper import attend

        attend(grid, codes, tensors, sizes)
        return
    attention_kernel[grid](
        *codes,
        *tensors,
        *sizes,
        BLOCK=QUERIES,
        KEYS=KEYS,
        D=width,
        INTERPRETED=_interpreted(),
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
