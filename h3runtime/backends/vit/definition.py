"""`torch`: the definition of correct, one plain PyTorch operation after the other. Runs anywhere.

Every rounding of the video decoder between its matrix products is written down here (conditioning contract §4.1, §4.8).
Read by the decoder's blocks, and by every other family's tests.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch.nn import functional as F

from h3runtime.backends.vit.base import Activation, VitSteps
from h3runtime.quant.fp8 import quantize_rows
from h3runtime.quant.row_codes import RowCodes


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn pairs (i, i + 3m) of x [B, S, .., D]; the last quarter of D passes through."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class TorchSteps:
    name = "torch"
    grade = "reference"
    gives_codes = False

    def why_unavailable(self, device: torch.device) -> str | None:  # noqa: ARG002  # part of the interface
        return None

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, codes: bool = False) -> Activation:
        normed = self._normed(x, weight, eps)
        return in_codes(normed) if codes else normed

    def _normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_norm(
        self,
        x: torch.Tensor,
        update: torch.Tensor,
        scale: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        codes: bool = False,
        owed: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Activation]:
        x.addcmul_(scale, _with(update, owed))
        return x, self.norm(x, weight, eps, codes=codes)

    def attend(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        eps: float,
        *,
        codes: bool = False,
        owed: torch.Tensor | None = None,
    ) -> Activation:
        attended = self._attended(_with(qkv.flatten(2), owed).view(qkv.shape), cos, sin, eps)
        return in_codes(attended) if codes else attended

    def _attended(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
        # q and k at once: half the kernels, and each number by the same operations.
        normed = F.rms_norm(qkv[..., :2, :], qkv.shape[-1:], eps=eps)
        q, k = rotate(normed, cos.unsqueeze(1), sin.unsqueeze(1)).unbind(-2)
        v = qkv[..., 2, :]
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        # ComfyUI replaces NaN alone (§4.1); infinities stay, so that a check of the frames still finds them.
        return out.transpose(1, 2).flatten(2).nan_to_num(0.0, math.inf, -math.inf)

    def gated(self, x: torch.Tensor, *, codes: bool = False, owed: torch.Tensor | None = None) -> Activation:
        gate, value = _with(x, owed).chunk(2, -1)
        made = F.silu(gate).mul_(value)
        return in_codes(made) if codes else made


def in_codes(x: torch.Tensor) -> RowCodes:
    """x [B, S, K] -> FP8 by the linear's own rule, codes [B*S, K]."""
    return RowCodes(*quantize_rows(x.flatten(0, 1)), x.dtype)


def _with(x: torch.Tensor, owed: torch.Tensor | None) -> torch.Tensor:
    return x if owed is None else x + owed


DEFINITION: Final[VitSteps] = TorchSteps()
"""Holds nothing; what a decoder uses unless it is told otherwise."""
