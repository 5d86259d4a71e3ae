"""PyTorch's scaled_dot_product_attention: the definition of correct.

PyTorch chooses among its own kernels. On one H200 torch 2.11 takes cuDNN's: the same bits as `cudnn_sdpa` in the same
72.7 ms at S = 37,810, where its flash kernel takes 114.0 (performance.md).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts


class SdpaAttention(Kernel):
    name = "sdpa"
    grade = "reference"
    exact = True
    tolerance = 0.02

    def why_unavailable(self, device: DeviceFacts) -> str | None:  # noqa: ARG002  # part of the interface
        return None

    def why_unfit(self, head_dim: int) -> str | None:  # noqa: ARG002
        return None

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return out.transpose(1, 2)
