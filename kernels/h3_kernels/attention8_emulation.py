"""`attention8` in plain PyTorch: the same quantisation, the same blocks in the same order, sums in fp32.

What the kernel is held to, and a way to ask on any machine what an 8-bit attention costs in quality. Imports no Triton.
Bit for bit in codes and scales, but for the means of k and v, which the kernel adds up in pieces; the attention itself
differs where exp2 or the order of a sum rounds another way.

Padded rows are left out instead of being taken off the sum: that is the same number. So is v in its own order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

INT8_MAX: Final = 127.0
E4M3_MAX: Final = 448.0
SMALLEST_SCALE: Final = 1e-30
P_SHIFT: Final = 8.0


@dataclass(frozen=True, slots=True)
class Emulated:
    """q, k, v codes as fp32 [G, S, D]; q_scales [G, S], k_scales [G, blocks], v_scales [G, D]; v_mean [G, D], less what
    the codes of v average to."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scales: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor
    v_mean: torch.Tensor


def emulate(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, keys: int = 256) -> torch.Tensor:
    """[B, S, H, D] -> the same in q's dtype; `keys`: rows of a block of keys."""
    made = attend(quantized(q, k, v, keys=keys), keys)
    return made.view(q.shape[0], q.shape[2], *made.shape[1:]).transpose(1, 2).to(q)


def quantized(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, keys: int) -> Emulated:
    q, k, v = (x.transpose(1, 2).flatten(0, 1).float() for x in (q, k, v))
    q_scales = _scale(q.abs().amax(2), INT8_MAX)
    k = k - k.mean(1, keepdim=True)
    blocks = torch.split(k.abs().amax(2), keys, 1)
    k_scales = torch.stack([_scale(block.amax(1), INT8_MAX) for block in blocks], 1)
    spread = k_scales.repeat_interleave(keys, 1)[:, : k.shape[1], None]
    v_mean = v.mean(1)
    v_scales = _scale(torch.maximum(v.amax(1) - v_mean, v_mean - v.amin(1)), E4M3_MAX)
    v = _e4m3((v - v_mean.unsqueeze(1)) * (1.0 / v_scales).unsqueeze(1))
    softmax_scale = torch.tensor(math.log2(math.e) / math.sqrt(q.shape[2]), dtype=torch.float32, device=q.device)
    return Emulated(
        q=(q * (1.0 / q_scales).unsqueeze(2)).round(),
        k=(k * (1.0 / spread)).round(),
        v=v,
        q_scales=q_scales * softmax_scale,
        k_scales=k_scales,
        v_scales=v_scales,
        v_mean=v_mean - v.mean(1) * v_scales,
    )


def attend(given: Emulated, keys: int) -> torch.Tensor:
    """Online softmax over blocks of keys -> fp32 [G, S, D]."""
    high = torch.full_like(given.q_scales, -math.inf)
    total, acc = torch.zeros_like(high), torch.zeros_like(given.v)
    for block, (k, v) in enumerate(zip(torch.split(given.k, keys, 1), torch.split(given.v, keys, 1), strict=True)):
        scale = given.q_scales * given.k_scales[:, block, None]
        x = given.q @ k.transpose(1, 2)
        higher = torch.maximum(high, x.amax(2) * scale)
        p = torch.exp2(x * scale.unsqueeze(2) - (higher - P_SHIFT).unsqueeze(2))
        fade = torch.exp2(high - higher)
        total = total * fade + p.sum(2)
        acc = acc * fade.unsqueeze(2) + _e4m3(p) @ v
        high = higher
    return acc * (1.0 / total).unsqueeze(2) * given.v_scales.unsqueeze(1) + given.v_mean.unsqueeze(1)


def _scale(largest: torch.Tensor, limit: float) -> torch.Tensor:
    return (largest * (1.0 / limit)).clamp(min=SMALLEST_SCALE)


def _e4m3(x: torch.Tensor) -> torch.Tensor:
    """As the 8 bits hold it, fp32."""
    return x.to(torch.float8_e4m3fn).float()
