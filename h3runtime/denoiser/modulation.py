"""Timesteps to AdaLN vectors.

Holds the modules that make vectors: timestep network or curve, then one projection a block. Does not decide which row
reads which vector (`timeline`), nor when vectors are made (`plan`), nor puts them onto rows (`backends.fused`). Fed by
`plan`.

    e      [M, time_dim]      timestep network, fp32; or lerp in the curve, fp32
    block  [M*3, 6*hidden]    shift, scale, gate for attention, the same for the MLP (dit-contract §4.2)
    final  [M, 2*hidden]      shift, scale (§4.6)
"""

from __future__ import annotations

import math
from typing import Final, overload

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.linear.base import BackendLinear

MAX_PERIOD: Final = 10_000.0
"""Longest period of the timestep sinusoid (dit-contract §4.5)."""


class TimeEmbedder(nn.Module):
    """t -> [cos | sin] -> linear -> SiLU -> linear, all fp32 (dit-contract §4.5)."""

    def __init__(self, sinusoid: int, hidden: int, out: int) -> None:
        super().__init__()
        self.frequencies = sinusoid // 2
        self.proj_in = nn.Linear(sinusoid, hidden)
        self.proj_out = nn.Linear(hidden, out)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        """t fp32 [M], unscaled in [0, 1] -> fp32 [M, out]."""
        index = torch.arange(self.frequencies, dtype=torch.float32, device=t.device)
        angles = t.unsqueeze(1) * torch.exp(-math.log(MAX_PERIOD) * index / self.frequencies)
        wave = torch.cat([angles.cos(), angles.sin()], dim=1)
        embedded: torch.Tensor = self.proj_out(F.silu(self.proj_in(wave)))
        return embedded


def curve(table: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Pruned form: linear interpolation in a table over t in [0, 1] (dit-contract §1.4).

    table [grid, rank], t fp32 [M] -> fp32 [M, rank]. SiLU is inside the table already.
    """
    table = table.float()
    position = t.clamp(0.0, 1.0) * (table.shape[0] - 1)
    low = position.floor().clamp(max=table.shape[0] - 2).long()
    return torch.lerp(table[low], table[low + 1], (position - low).unsqueeze(1))


class AdaLn(nn.Module):
    """The projection to modulation vectors; `linear` is the checkpoint's name for it."""

    def __init__(self, time_dim: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(time_dim, out)

    @overload
    def forward(self, e: torch.Tensor) -> torch.Tensor: ...

    @overload
    def forward(self, e: list[torch.Tensor]) -> list[torch.Tensor]: ...

    def forward(self, e: torch.Tensor | list[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        """[M, time_dim] -> [M, out]; of several each by itself, with a stored weight decoded once."""
        if isinstance(e, torch.Tensor):
            projected: torch.Tensor = self.linear(e)
            return projected
        return self.linear.each(e) if isinstance(self.linear, BackendLinear) else [self.linear(one) for one in e]
