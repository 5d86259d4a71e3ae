"""The token refiner: encoder output to the DiT's text rows.

A projection (held by `Dit`) and a few pre-norm blocks over the text rows alone: no rotation, no AdaLN, no timestep, so
a run needs it once (dit-contract §2.4). Fed by `Dit.refine`; its output is the text segment of every forward.
"""

from __future__ import annotations

import torch
from torch import nn

from h3runtime.denoiser.blocks import Attention, AttentionCall, Mlp, RmsNorm
from h3runtime.denoiser.config import DitConfig


class RefinerBlock(nn.Module):
    """x += attn(norm1 x); x += mlp(norm2 x)."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.norm1 = RmsNorm(config.hidden, config.norm_eps)
        self.attn = Attention(config)
        self.norm2 = RmsNorm(config.hidden, config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor, call: AttentionCall) -> torch.Tensor:
        """x [L, hidden], updated in place and returned."""
        made = call.producers
        x.add_(self.attn(made.norm(x, self.norm1.held), call))
        return x.add_(self.mlp(made.norm(x, self.norm2.held), made))


class TokenRefiner(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock(config) for _ in range(config.refiner_layers))
        self.final_norm = RmsNorm(config.hidden, config.final_norm_eps)

    def forward(self, x: torch.Tensor, call: AttentionCall) -> torch.Tensor:
        """Projected text [L, hidden] (overwritten) -> refined rows [L, hidden]."""
        for block in self.blocks:
            x = block(x, call)
        return call.producers.norm(x, self.final_norm.held)
