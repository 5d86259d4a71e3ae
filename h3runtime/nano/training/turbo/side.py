"""LoRA pairs beside the linears of a DiT's blocks, to be learnt while the weights themselves stay.

    y = x (W + B A)^T        A [r, K], B [n, r]; of a fused qkv three pairs, each for its third of the rows

alpha is the rank, so the scale is 1. The sum is made once an update (`merge`), not once a call: at these widths it is
cheaper than a branch, and equal to it but for roundings. After a backward pass `release` gives up how it was made, for
gradients are added on the stream on which that began, and another one can't record them. Fed by `student`;
`transformer` runs a DiT that has them as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.denoiser.blocks import Attention, Mlp
from h3runtime.denoiser.dit import Dit

FUSED: Final = "attn.qkv_proj"
LINEARS: Final = (FUSED, "attn.out_proj", "mlp.fc1", "mlp.fc2")
"""Of every block, in the layout's order (checkpoint-formats §6)."""
THIRDS: Final = 3


class SideLinear(nn.Module):
    """Stands where an `nn.Linear` without bias stood: x [..., K] -> [..., N]. parts: pairs for as many parts of the
    rows. `merge` has to come before a forward, and after every change of the pairs."""

    def __init__(self, base: nn.Linear, parts: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = base.weight.shape
        downs = torch.randn(parts, rank, columns, generator=generator) * columns**-0.5
        self.weight = base.weight
        self.downs = nn.ParameterList(nn.Parameter(down.clone()) for down in downs)
        self.ups = nn.ParameterList(nn.Parameter(torch.zeros(rows // parts, rank)) for _ in range(parts))
        self.merged = base.weight.detach()

    @property
    def rank(self) -> int:
        return int(self.downs[0].shape[0])

    def merge(self) -> None:
        """W + B A, differentiable where gradients are on."""
        self.merged = self.weight + torch.cat([up @ down for down, up in zip(self.downs, self.ups, strict=True)])

    def release(self) -> None:
        """Keep the sum alone. Whatever of a backward pass lives on, lives on with the stream that it ran on."""
        self.merged = self.merged.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.merged)


def attach(dit: Dit, rank: int, seed: int) -> dict[str, SideLinear]:
    """Freeze a DiT and put sides on its blocks' linears, in place; by the linears' names. B is zero at first."""
    generator = torch.Generator().manual_seed(seed)
    dit.requires_grad_(False)
    found: dict[str, SideLinear] = {}
    for block in block_names(dit):
        for leaf in LINEARS:
            owner = cast(Attention | Mlp, dit.get_submodule(f"{block}.{leaf.split('.')[0]}"))
            name = leaf.split(".")[1]
            side = SideLinear(getattr(owner, name), THIRDS if leaf == FUSED else 1, rank, generator)
            setattr(owner, name, side)
            found[f"{block}.{leaf}"] = side
    return found


def block_names(dit: Dit) -> Iterator[str]:
    """The blocks, then the refiner's, as the layout has them."""
    yield from (f"blocks.{i}" for i in range(len(dit.blocks)))
    yield from (f"token_refiner.blocks.{i}" for i in range(len(dit.token_refiner.blocks)))
