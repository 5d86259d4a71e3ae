"""Block-sparse attention over a table of tiles, on CUDA: what `backends.attention.sparse.definition` defines.

Checks shapes, picks a configuration and launches `sparse_kernels`; knows neither the packed sequence nor how tiles are
chosen. N tiles of at most 64 rows; `rows` int32 [N, 64], -1 where a tile has none.

    pooled        x [B, S, H, D]            -> means fp32 [B, H, N, D]     reads x once
    attend_tiles  q, k, v, kept [B, H, n, c] -> rows of n tiles of out      4*64*64*D*c operations a tile and head

D is a multiple of 8 up to 128; BF16, FP16 or FP32 (which multiplies in FP32, not TF32). P is rounded to v's dtype
before it meets v, as in any flash attention of 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton

from h3_kernels.sparse_kernels import attention_kernel, mean_kernel

TILE: Final = 64
ROOMY: Final = 160 * 1024
"""Bytes of shared memory a block may have (Hopper 227 KiB, SM 8.0 163, SM 12.x 99) from which two tiles of keys and of
values are read at once: q 16 KiB, and two stages of 2*128*128*2 bytes, 128 KiB."""


@dataclass(frozen=True, slots=True)
class Launch:
    """keys: of one turn, 64 or 128."""

    keys: int = 128
    warps: int = 4
    stages: int = 2


NARROW: Final = Launch(keys=64)


def pooled(x: torch.Tensor, rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """x [B, S, H, D] -> fp32 [B, H, N, D], sums in fp32; sizes fp32 [N]. ValueError for other shapes."""
    _require("x", x, x)
    batch, _, heads, dim = x.shape
    tiles = rows.shape[0]
    means = torch.empty(batch, heads, tiles, dim, dtype=torch.float32, device=x.device)
    mean_kernel[(tiles, batch * heads)](
        x, rows, sizes, means, *_strides(x), heads, tiles, D=dim, WIDTH=_width(dim), num_warps=4
    )
    return means


def attend_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: torch.Tensor,
    kept: torch.Tensor,
    first: int,
    out: torch.Tensor,
    launch: Launch | None = None,
) -> None:
    """Writes the rows of tiles [first, first + n) of out; kept int32 [B, H, n, c], contiguous, c >= 1."""
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        _require(name, x, q)
    batch, _, heads, dim = q.shape
    tiles, count = kept.shape[2:]
    if kept.dtype != torch.int32 or not kept.is_contiguous() or count < 1:
        raise ValueError(f"kept: {kept.dtype} {tuple(kept.shape)} (want contiguous int32 [B, H, n, c], c >= 1)")
    if not tiles:
        return
    launch = launch or _launch(q)
    attention_kernel[(tiles, batch * heads)](
        q,
        k,
        v,
        out,
        rows,
        kept,
        *(stride for x in (q, k, v, out) for stride in _strides(x)),
        heads,
        first,
        tiles,
        count,
        math.log2(math.e) / math.sqrt(dim),
        D=dim,
        WIDTH=_width(dim),
        KEYS=launch.keys,
        STAGES=launch.stages,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        INTERPRETED=bool(triton.knobs.runtime.interpret),
        num_warps=launch.warps,
        num_stages=launch.stages,
    )


def _launch(q: torch.Tensor) -> Launch:
    if not q.is_cuda:
        return Launch()
    facts: Any = torch.cuda.get_device_properties(q.device)
    roomy = q.element_size() == 2 and facts.shared_memory_per_block_optin >= ROOMY
    return Launch() if roomy else NARROW


def _width(dim: int) -> int:
    """A power of two that a dot takes: at least 16."""
    power: int = triton.next_power_of_2(dim)
    return max(16, power)


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _require(name: str, x: torch.Tensor, like: torch.Tensor) -> None:
    if x.dim() != 4 or x.shape != like.shape or x.stride(3) != 1 or x.shape[3] % 8 or not 0 < x.shape[3] <= 128:
        raise ValueError(f"{name}: {tuple(x.shape)}, strides {x.stride()} (want [B, S, H, D] like q, D up to 128)")
    if x.dtype != like.dtype or x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"{name}: {x.dtype} (want that of q: bfloat16, float16 or float32)")
