"""What a family of ViT steps is: all that a block of the video decoder does between its matrix products.

`torch` (`definition`) is the definition of correct; every other family says how far from it it may be. Model code calls
these and knows nothing of devices or kernels; weights and tables are handed in, so a family holds no model. Every
operation is fp32 inside and rounds to the tensors' dtype, fp16 or fp32, where a line below says so (conditioning
contract §4.1, §4.8).

    norm        x / sqrt(mean(x^2) + eps) * weight              rounded once
    add_norm    x + scale * update, then its norm               rounded once each
    attend      q, k: norm per head without weights, rotation; softmax(q k^T / sqrt(D)) v, NaN becomes 0
    gated       silu(gate) * value                              two roundings

For linears in FP8 a family may end a step in codes, by the linear's own rule, and add a bias where it reads what the
product gave: the numbers are those of the linear's rounding and adding, but for v's bias, which is added to what
attention gives, whose weights sum to one.
"""

from __future__ import annotations

from typing import Protocol

import torch

from h3runtime.quant.row_codes import RowCodes

Activation = torch.Tensor | RowCodes
"""What a linear reads."""


class VitSteps(Protocol):
    """x, update, h [B, S, W] contiguous; scale, weight [W]; all of one dtype.

    gives_codes: whether a result in FP8 costs less here than the linear's own rounding of it would; a block asks for
    `codes` only then, and only for a linear that reads them. owed: a bias that the product before hasn't added.
    """

    name: str
    grade: str
    gives_codes: bool

    def why_unavailable(self, device: torch.device) -> str | None:
        """Why these can't run on `device`, or None if they can."""
        ...

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, codes: bool = False) -> Activation: ...

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
        """x, which becomes x + scale*update in place, and its norm. update is spent."""
        ...

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
        """qkv [B, S, H, 3, D], spent; cos, sin [S, 1, 3m] of `rotary_table`; owed [3*H*D] -> [B, S, H*D]."""
        ...

    def gated(self, x: torch.Tensor, *, codes: bool = False, owed: torch.Tensor | None = None) -> Activation:
        """[B, S, 2*F], gate then value, spent -> [B, S, F]."""
        ...
