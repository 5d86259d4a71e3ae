"""`sparse8` in plain PyTorch: the same codes, the same lists, the same turns in the same order, sums in fp32.

What the kernels are held to, and what runs on a CPU to be judged there. Imports no Triton. Bit for bit in codes and
scales, but for the means, which the kernels add up in pieces; scores that are equal up to that may be kept in one and
not in the other. The attention itself differs where exp2 or the order of a sum rounds another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from h3_kernels.attention8_emulation import E4M3_MAX, INT8_MAX, P_SHIFT, _e4m3, _scale

TILE: Final = 64
QUERIES: Final = 128
KEYS: Final = 256
SMALLEST_SCALE: Final = 1e-15
"""Of q and of k."""
PIECE: Final = 2**22
"""Scores that are there at once."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """Codes as fp32 [G, S, D], rows at their places; q_scales [G, S], k_scales [G], v_scales, v_mean [G, D]; q_means,
    k_means [G, 2*blocks, D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scales: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor
    v_mean: torch.Tensor
    q_means: torch.Tensor
    k_means: torch.Tensor


def attention8_sparse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, order: torch.Tensor, blocks: int, count: int
) -> torch.Tensor:
    """[B, S, H, D] -> the same in q's dtype; order [S], blocks and count as in `sparse8`."""
    batch, rows, heads, width = q.shape
    if not q.numel():
        return torch.empty_like(q)
    made = quantized(q, k, v, order, blocks)
    attended = attend(made, chosen(made.q_means, made.k_means, count))
    out = torch.empty(batch, rows, heads, width, dtype=q.dtype, device=q.device)
    out[:, order.long()] = attended.view(batch, heads, rows, width).transpose(1, 2).to(q.dtype)
    return out


def quantized(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, order: torch.Tensor, blocks: int) -> Emulated:
    q, k, v = (x.index_select(1, order.long()).transpose(1, 2).flatten(0, 1).float() for x in (q, k, v))
    groups, _, width = q.shape
    q_means, k_means = (x[:, : blocks * QUERIES].reshape(groups, 2 * blocks, TILE, width).mean(2) for x in (q, k))
    q_scales = _by_int8(q.abs().amax(2))
    k_mean, v_mean = k.mean(1), v.mean(1)
    k_scales = _by_int8(_reach(k, k_mean).amax(1))
    v_scales = _scale(_reach(v, v_mean), E4M3_MAX)
    codes = _e4m3((v - v_mean.unsqueeze(1)) * (1.0 / v_scales).unsqueeze(1))
    softmax_scale = torch.tensor(math.log2(math.e) / math.sqrt(width), dtype=torch.float32, device=q.device)
    return Emulated(
        q=(q * (1.0 / q_scales).unsqueeze(2)).round(),
        k=((k - k_mean.unsqueeze(1)) * (1.0 / k_scales)[:, None, None]).round(),
        v=codes,
        q_scales=q_scales * softmax_scale,
        k_scales=k_scales,
        v_scales=v_scales,
        v_mean=v_mean - codes.mean(1) * v_scales,
        q_means=q_means,
        k_means=k_means,
    )


def chosen(q_means: torch.Tensor, k_means: torch.Tensor, count: int) -> torch.Tensor:
    """Means [G, 2*blocks, D] of tiles -> int64 [G, blocks, count] in rising order: of most weight for both tiles of a
    block together, of equal ones the first."""
    groups, tiles, width = q_means.shape
    if not tiles:
        return torch.empty(groups, 0, count, dtype=torch.int64, device=q_means.device)
    scores = (q_means @ k_means.transpose(1, 2)) * (math.log2(math.e) / math.sqrt(width))
    scores = scores - scores.amax(2, keepdim=True)
    weights = scores - scores.exp2().sum(2, keepdim=True).log2()
    one, other = weights.view(groups, tiles // 2, 2, tiles).unbind(2)
    together = torch.maximum(one, other) + (1 + (-(one - other).abs()).exp2()).log2()
    best = together.sort(dim=2, descending=True, stable=True).indices[:, :, :count]
    return best.sort(dim=2).values


def attend(given: Emulated, kept: torch.Tensor) -> torch.Tensor:
    """fp32 [G, S, D], rows at their places."""
    groups, rows, width = given.q.shape
    blocks, count = kept.shape[1:]
    start, device = blocks * QUERIES, kept.device
    out = torch.empty(groups, rows, width, device=device)
    out[:, start:] = _attended(given, slice(start, rows), given.k.unsqueeze(1), given.v.unsqueeze(1)).flatten(1, 2)
    exact = torch.arange(start, rows, device=device)
    lanes = torch.arange(TILE, device=device)
    group = torch.arange(groups, device=device)[:, None, None]
    step = max(1, PIECE // (groups * QUERIES * (count * TILE + len(exact))))
    for first in range(0, blocks, step):
        some = kept[:, first : first + step]
        keys = (some.unsqueeze(3) * TILE + lanes).flatten(2)
        keys = torch.cat([keys, exact.expand(*keys.shape[:2], -1)], 2)
        places = slice(first * QUERIES, (first + some.shape[1]) * QUERIES)
        made = _attended(given, places, given.k[group, keys], given.v[group, keys])
        out[:, places] = made.flatten(1, 2)
    return out


def _attended(given: Emulated, places: slice, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Online softmax over turns of keys and values [G, n, K, D], each for an n-th of the places -> [G, n, those, D]."""
    groups, count, _, width = keys.shape
    q = given.q[:, places].reshape(groups, count, -1, width)
    scale = (given.q_scales[:, places] * given.k_scales[:, None]).reshape(groups, count, -1)
    high = torch.full_like(scale, -1e30)
    total, acc = torch.zeros_like(high), torch.zeros_like(q)
    for k, v in zip(torch.split(keys, KEYS, 2), torch.split(values, KEYS, 2), strict=True):
        x = q @ k.transpose(2, 3)
        higher = torch.maximum(high, x.amax(3) * scale)
        p = torch.exp2(x * scale.unsqueeze(3) - (higher - P_SHIFT).unsqueeze(3))
        fade = torch.exp2(high - higher)
        total = total * fade + p.sum(3)
        acc = acc * fade.unsqueeze(3) + _e4m3(p) @ v
        high = higher
    result = acc * (1.0 / total).unsqueeze(3)
    return result * given.v_scales[:, None, None] + given.v_mean[:, None, None]


def _reach(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """[G, S, D] -> [G, D]: how far x reaches from its mean."""
    return torch.maximum(x.amax(1) - mean, mean - x.amin(1))


def _by_int8(largest: torch.Tensor) -> torch.Tensor:
    return (largest * (1.0 / INT8_MAX)).clamp(min=SMALLEST_SCALE)
