"""PyTorch's scaled_dot_product_attention: the definition of correct."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from h3runtime.core import PackedLayout


class SdpaAttention:
    name = "sdpa"
    grade = "reference"

    def why_unavailable(self, device: torch.device) -> str | None:  # noqa: ARG002  # part of the interface
        return None

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        layout: PackedLayout | None,  # noqa: ARG002
        step: int,  # noqa: ARG002
    ) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return out.transpose(1, 2)
