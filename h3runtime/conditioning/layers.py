"""Small layers that the vision tower and the language model share.

The encoder computes in fp32 whatever dtype its weights are stored in (conditioning contract §1.7): norms cast their
weights to the activation's dtype per call, as the linear backends do. Knows neither tower nor text.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

ROWS_AT_ONCE = 4096
"""Above this many rows an MLP runs in slices: at the published width the middle of 4096 rows is 420 MB in fp32."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, weight as it is (not 1 + w)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


def uninitialised_embedding(rows: int, size: int) -> nn.Embedding:
    """A table [rows, size] that a checkpoint fills. Drawing random values for it on the meta device would import
    torch's compiler: seconds of start, hundreds of modules, and a folder in the system's temporary one."""
    return nn.Embedding(rows, size, _weight=torch.empty(rows, size))


def in_row_slices(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function`, which treats each row of x [.., rows, C] on its own, with the middle of only some rows at a time."""
    if x.shape[-2] <= ROWS_AT_ONCE:
        return function(x)
    return torch.cat([function(rows) for rows in torch.split(x, ROWS_AT_ONCE, dim=-2)], dim=-2)
