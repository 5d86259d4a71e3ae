"""What an attention backend is. The reference is `sdpa`; every other one is compared with it.

Model code calls `attend` and knows nothing of devices or kernels. The text encoder and the VAEs never use this choice.
"""

from __future__ import annotations

from typing import Protocol

import torch

from h3runtime.core import PackedLayout


class AttentionBackend(Protocol):
    """softmax(q k^T / sqrt(D)) v over all S rows, no mask (dit-contract §2, §4.3)."""

    name: str
    grade: str

    def why_unavailable(self, device: torch.device) -> str | None:
        """Why this backend can't run on `device`, or None if it can."""
        ...

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        """q, k, v [B, S, H, D] (strided views welcome) -> [B, S, H, D], same dtype.

        `layout` names the rows that an approximation must keep exact (None: all of one kind, as in the token refiner);
        `step` counts sampler steps from 0.
        """
        ...
