"""`cpu`: the definition's arithmetic in fewer and wider operations, bit for bit the same on a CPU.

PyTorch takes `rms_norm` apart on the CPU, into a power, a mean and three products with a copy each; here the same fp32
operations are done in place, for q and k at once, and the mean as the sum and the division that it is: `mean` itself
takes twice as long. 1 + scale is made for all rows of a table at once. The rotation is two products and a sum over full
width instead of six over half: with the halves of x swapped, out = x*(cos | cos) + swapped*(-sin | sin), and
-(a*b) = (-a)*b in any rounding. What this saves is measured in `benchmarks/LOG.md`. SwiGLU and gates are the
definition's.
"""

from __future__ import annotations

from typing import Final

import torch

from h3runtime.backends.fused.base import Activation, Form, NormWeight, Rotary, TableRows
from h3runtime.backends.fused.definition import TorchProducers

CPU_ROWS: Final = 1024
"""Rows of q and k at once: 1 MB of fp32 for two heads of 128, half of a core's second cache."""


class CpuProducers(TorchProducers):
    name = "cpu"
    grade = "validated"

    def why_unavailable(self, device: torch.device) -> str | None:
        return None if device.type == "cpu" else "made for the CPU"

    def rotary(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotary:
        return Rotary(cos, sin, torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))

    def norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
        return _normed(x, norm.weight.to(x.dtype).float(), norm.eps)

    def norm_modulate(
        self,
        x: torch.Tensor,
        norm: NormWeight,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: TableRows,
        *,
        codes: Form | None = None,
    ) -> Activation:
        if codes is not None or rows.index is not None:
            return super().norm_modulate(x, norm, shift, scale, rows, codes=codes)
        made, factors = self.norm(x, norm), 1 + scale
        for start, stop, row in rows.segments:
            made[start:stop].mul_(factors[row]).add_(shift[row])
        return made

    def norm_rotate_(self, qkv: torch.Tensor, q_norm: NormWeight, k_norm: NormWeight, rotary: Rotary | None) -> None:
        assert q_norm.eps == k_norm.eps, "q and k are normed at once"
        each = torch.stack([q_norm.weight, k_norm.weight]).to(qkv.dtype).float().unsqueeze(1)
        weights = each.expand(-1, *qkv.shape[2:]).reshape(-1)
        for start in range(0, qkv.shape[0], CPU_ROWS):
            piece = slice(start, start + CPU_ROWS)
            both = qkv[piece, :2]
            normed = _normed(both, weights, q_norm.eps)
            if rotary is not None:
                _rotate_(normed, rotary.rows(piece))
            both.copy_(normed)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [n, ..., dim] -> the same, a copy; weight fp32 of all numbers of a row. `Tensor.float` copies no fp32: clone
    does."""
    wide = x.float() if x.dtype != torch.float32 else x.clone(memory_format=torch.contiguous_format)
    wide.mul_((wide * wide).sum(-1, keepdim=True).div_(x.shape[-1]).add_(eps).rsqrt_())
    wide.flatten(1).mul_(weight)
    return wide.to(x.dtype)


def _rotate_(x: torch.Tensor, rotary: Rotary) -> None:
    """x [n, 2, H, D] in place."""
    assert rotary.both is not None and rotary.signed is not None, "of another family"
    half = rotary.cos.shape[-1]
    swapped = torch.empty_like(x[..., : 2 * half], memory_format=torch.contiguous_format)
    swapped[..., :half] = x[..., half : 2 * half]
    swapped[..., half:] = x[..., :half]
    swapped.mul_(rotary.signed[:, None, None])
    x[..., : 2 * half].mul_(rotary.both[:, None, None]).add_(swapped)
