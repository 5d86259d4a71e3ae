"""Sparse attention over a table of tiles, in plain PyTorch: what the Triton kernels (`h3_kernels.sparse`) must give.

Knows neither layouts nor methods. Fed by `backend` with strided views [B, S, H, D] and a table of rows (`tiles`); runs
on any device, and is what runs on the CPU.

    means     [B, H, N, D]  fp32 mean over a tile's rows
    chosen    [B, H, n, c]  the tiles that each query tile reads: all exact ones, then the cubes whose means score
                            highest, q_mean k_mean^T; in rising order, the same number for every query tile
    attended  softmax(q k^T / sqrt(D)) v of a tile's queries over the rows of its chosen tiles, exactly

Gathering costs 2 c/N of a dense pass over k and v for each query tile and bounds nothing but memory, a piece at a time.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional as F

PIECE_BYTES: Final = 64 * 2**20
"""Of scores, and of gathered keys or values, that are there at once."""


def pooled(x: torch.Tensor, rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """x [B, S, H, D], rows int32 [N, 64], sizes fp32 [N] -> fp32 [B, H, N, D]."""
    return _gathered(x, rows).sum(3, dtype=torch.float32) / sizes[:, None]


def chosen(q_means: torch.Tensor, k_means: torch.Tensor, exact: int, count: int) -> torch.Tensor:
    """Means [B, H, N, D], the first `exact` of tiles that are never left out -> int32 [B, H, N - exact, exact + count],
    for the queries of every cube."""
    batch, heads, tiles, _ = q_means.shape
    cubes = tiles - exact
    kept = torch.empty(batch, heads, cubes, exact + count, dtype=torch.int32, device=q_means.device)
    kept[..., :exact] = torch.arange(exact, dtype=torch.int32, device=q_means.device)
    keys = k_means[:, :, exact:].transpose(-1, -2)
    step = max(1, PIECE_BYTES // (4 * batch * heads * cubes))
    for start in range(0, cubes, step):
        piece = slice(start, min(start + step, cubes))
        scores = q_means[:, :, exact:][:, :, piece] @ keys
        best = scores.topk(count, dim=-1, sorted=False).indices
        kept[:, :, piece, exact:] = best.sort(dim=-1).values + exact
    return kept


def attend_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: torch.Tensor,
    kept: torch.Tensor,
    first: int,
    out: torch.Tensor,
) -> None:
    """Writes the rows of tiles [first, first + n) of out [B, S, H, D]; kept int32 [B, H, n, c]. None may be empty."""
    batch, _, heads, dim = q.shape
    keys, values = (_gathered(x, rows).flatten(0, 1) for x in (k, v))
    count = kept.shape[3]
    step = max(1, PIECE_BYTES // (k.element_size() * batch * heads * count * rows.shape[1] * dim))
    group = torch.arange(batch * heads, device=q.device)[:, None, None]
    for start in range(0, kept.shape[2], step):
        picks = kept[:, :, start : start + step].flatten(0, 1).long()
        at = rows[first + start : first + start + picks.shape[1]]
        queries = _gathered(q, at).flatten(0, 2).unsqueeze(1)
        read = (rows >= 0)[picks].flatten(0, 1).flatten(1)[:, None, None]
        shape = (-1, 1, read.shape[-1], dim)
        attended = F.scaled_dot_product_attention(
            queries, keys[group, picks].view(shape), values[group, picks].view(shape), attn_mask=read
        )
        _scatter(out, at, attended.view(batch, heads, *at.shape, dim))


def coarse(q_means: torch.Tensor, k_means: torch.Tensor, v_means: torch.Tensor) -> torch.Tensor:
    """Means [B, H, N, D] fp32 -> attention among the means, fp32 [B, H, N, D]."""
    return F.scaled_dot_product_attention(q_means, k_means, v_means)


def add_gated_(out: torch.Tensor, pooled_out: torch.Tensor, gate: torch.Tensor, owner: torch.Tensor) -> None:
    """out [B, S, H, D] += pooled_out [B, H, N, D] of its tile, in out's dtype, * gate [B, S, H, D]; owner int64 [S]."""
    spread = pooled_out.to(out.dtype).transpose(1, 2).index_select(1, owner)
    out.add_(spread.mul_(gate))


def _gathered(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[B, S, H, D] -> a copy [B, H, N, 64, D], zeros where a tile has no row."""
    batch, _, heads, dim = x.shape
    taken = x.transpose(1, 2).index_select(2, rows.clamp(min=0).flatten().long())
    return taken.view(batch, heads, *rows.shape, dim).masked_fill_((rows < 0)[:, :, None], 0)


def _scatter(out: torch.Tensor, rows: torch.Tensor, tiled: torch.Tensor) -> None:
    """tiled [B, H, n, 64, D] to the rows of out [B, S, H, D] that it was taken from."""
    held = rows >= 0
    out[:, rows[held].long()] = tiled.permute(0, 2, 3, 1, 4)[:, held]
