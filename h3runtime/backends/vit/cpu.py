"""`cpu`: the definition's arithmetic in fewer and wider operations, bit for bit the same on a CPU.

PyTorch takes `rms_norm` apart on the CPU; here the same fp32 operations are done in place. The halves that a rotation
turns are laid apart, [2H, S, 3m] each: products with tables of [S, 3m] then run over whole heads instead of 3m numbers
at a time, 24 of the embedded model. What this saves is measured in `benchmarks/LOG.md`.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from h3runtime.backends.vit.definition import TorchSteps


class CpuSteps(TorchSteps):
    name = "cpu"
    grade = "validated"

    def why_unavailable(self, device: torch.device) -> str | None:
        return None if device.type == "cpu" else "made for the CPU"

    def _normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return _normed(x, eps).mul_(weight.float()).to(x.dtype)

    def _attended(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
        normed = _normed(qkv[..., :2, :], eps).flatten(2, 3).transpose(1, 2)
        turned = _rotated(normed, cos[:, 0], sin[:, 0], qkv.dtype)
        q, k = turned[:, 0::2], turned[:, 1::2]
        out = F.scaled_dot_product_attention(q, k, qkv[..., 2, :].transpose(1, 2))
        return out.transpose(1, 2).flatten(2).nan_to_num_(0.0, math.inf, -math.inf)


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps), fp32, a copy: `Tensor.float` copies no fp32."""
    wide = x.float() if x.dtype != torch.float32 else x.clone()
    return wide.mul_((wide * wide).sum(-1, keepdim=True).div_(x.shape[-1]).add_(eps).rsqrt_())


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x fp32 [B, 2H, S, D], rounded to `dtype` and then turned; cos, sin [S, 3m] in `dtype`; contiguous."""
    half = cos.shape[-1]
    out = torch.empty(x.shape, dtype=dtype)
    first, second = (torch.empty(*x.shape[:-1], half, dtype=dtype) for _ in range(2))
    first.copy_(x[..., :half])
    second.copy_(x[..., half : 2 * half])
    out[..., 2 * half :] = x[..., 2 * half :]
    out[..., :half] = (first * cos).sub_(second * sin)
    out[..., half : 2 * half] = second.mul_(cos).add_(first.mul_(sin))
    return out
