"""What a family of ViT steps is: all that a block of the video decoder does between its matrix products.

`torch` (`definition`) is the definition of correct; every other family says how far from it it may be. Model code calls
these and knows nothing of devices or kernels; weights and tables are handed in, so a family holds no model. Every
operation is fp32 inside and rounds to the tensors' dtype, fp16 or fp32, where a line below says so (conditioning
contract §4.1, §4.8).

    norm        x / sqrt(mean(x^2) + eps) * weight              rounded once
    add_norm    x + scale * update, then its norm               rounded once each
    attend      q, k: norm per head without weights, rotation; softmax(q k^T / sqrt(D)) v, NaN becomes 0
    gated       silu(gate) * value                              two roundings
"""

from __future__ import annotations

from typing import Protocol

import torch


class VitSteps(Protocol):
    """x, update, h [B, S, W] contiguous; scale, weight [W]; all of one dtype."""

    name: str
    grade: str

    def why_unavailable(self, device: torch.device) -> str | None:
        """Why these can't run on `device`, or None if they can."""
        ...

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def add_norm(
        self, x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, which becomes x + scale*update in place, and its norm. update is spent."""
        ...

    def attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
        """qkv [B, S, H, 3, D], spent; cos, sin [S, 1, 3m] of `rotary_table` -> [B, S, H*D]."""
        ...

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """[B, S, 2*F], gate then value, spent -> [B, S, F]."""
        ...
