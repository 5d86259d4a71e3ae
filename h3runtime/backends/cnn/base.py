"""What a family of CNN steps is: all that the video encoder does between its convolutions.

`torch` (`definition`) is the definition of correct; every other family says how far from it it may be. Model code calls
these and knows nothing of devices or kernels (conditioning contract §4.1, §4.8).

    normed    group norm with statistics of one frame, rounded once, SiLU, rounded once
    owed      a bias [C] that the convolution before hasn't added yet: x + owed, rounded once, comes first
    padded    zero frames in front, in time; in space one pixel reflected: below and to the right, and `before` above
              and to the left, 0 or 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class FrameNorm:
    """weight, bias [C] in the dtype of what is normed; groups of C / groups channels."""

    weight: torch.Tensor
    bias: torch.Tensor
    groups: int
    eps: float


class CnnSteps(Protocol):
    """x [B, C, T, H, W], fp16 or fp32. layout: of the weights of 3-D convolutions, and of what `padded` gives.

    adds_biases: whether the biases of convolutions whose results come here alone are added here, where they cost no
    pass over memory of their own.
    """

    name: str
    layout: torch.memory_format
    adds_biases: bool

    def padded(
        self, x: torch.Tensor, norm: FrameNorm | None, front: int, before: int, owed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x, normed first if there is a norm -> [B, C, T + front, H + before + 1, W + before + 1]."""
        ...

    def joined(
        self,
        shortcut: torch.Tensor,
        x: torch.Tensor,
        shortcut_owed: torch.Tensor | None = None,
        owed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """shortcut + x, each with what it is owed."""
        ...
