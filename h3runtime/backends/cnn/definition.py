"""`torch`: the definition of correct, one plain PyTorch operation after the other. Runs anywhere.

Read by the video encoder, and by every other family's tests.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional as F

from h3runtime.backends.cnn.base import CnnSteps, FrameNorm


def group_norm(x: torch.Tensor, norm: FrameNorm) -> torch.Tensor:
    """[B, C, T, H, W] -> the same; every frame has statistics of its own."""
    frames = x.transpose(1, 2)
    normed = F.group_norm(frames.flatten(0, 1), norm.groups, norm.weight, norm.bias, norm.eps)
    return normed.view(frames.shape).transpose(1, 2)


class TorchSteps:
    name = "torch"
    layout = torch.contiguous_format
    adds_biases = False

    def padded(
        self, x: torch.Tensor, norm: FrameNorm | None, front: int, before: int, owed: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = _with(x, owed)
        if norm is not None:
            x = F.silu(group_norm(x, norm))
        if front:
            # Joined, and before the sides grow: a constant F.pad fills the whole result, then copies x over it.
            x = torch.cat([torch.zeros_like(x[:, :, :1]).expand(-1, -1, front, -1, -1), x], 2)
        return F.pad(x, (before, 1, before, 1, 0, 0), mode="reflect")

    def joined(
        self,
        shortcut: torch.Tensor,
        x: torch.Tensor,
        shortcut_owed: torch.Tensor | None = None,
        owed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return _with(shortcut, shortcut_owed) + _with(x, owed)


def _with(x: torch.Tensor, owed: torch.Tensor | None) -> torch.Tensor:
    return x if owed is None else x + owed.view(-1, 1, 1, 1)


DEFINITION: Final[CnnSteps] = TorchSteps()
"""Holds nothing; what an encoder uses unless it is told otherwise."""
