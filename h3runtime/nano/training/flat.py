"""Weights side by side: all parameters of a training in one vector, so that an update of them is a handful of launches.

    values   fp32 [N], whose parts the parameters are from then on, in the order given
    gradient -> fp32 [N], put together from the parts that a backward pass left, zeros where it left none

Knows no optimiser. Fed by `joint` with the parameters of the DiT and the encoder; read by `optimiser`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class FlatWeights:
    """Takes the parameters' memory over: each becomes a view of `values`. All fp32 on one device."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [value for _, value in named]
        self.sizes = [value.numel() for value in self.parameters]
        self.values = torch.cat([value.detach().flatten() for value in self.parameters])
        for value, part in zip(self.parameters, self.split(self.values), strict=True):
            value.data = part
        self._none = torch.zeros(max(self.sizes), device=self.values.device)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A vector like `values` -> its parts, views in the parameters' shapes."""
        parts = torch.split(flat, self.sizes)
        return [part.view(value.shape) for part, value in zip(parts, self.parameters, strict=True)]

    def named(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The same by name."""
        return dict(zip(self.names, self.split(flat), strict=True))

    def gradient(self) -> torch.Tensor:
        """What the last backward pass left, [N]; the parameters' own are given up."""
        left = [self._none[:size] if p.grad is None else p.grad.flatten() for p, size in self._each()]
        flat = torch.cat(left)
        self.forget()
        return flat

    def forget(self) -> None:
        """Give the parameters' gradients up: the next backward pass puts its own there without an addition."""
        for value in self.parameters:
            value.grad = None

    def _each(self) -> zip[tuple[nn.Parameter, int]]:
        return zip(self.parameters, self.sizes, strict=True)
