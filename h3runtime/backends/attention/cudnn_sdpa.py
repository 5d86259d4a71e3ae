"""cuDNN's fused attention through PyTorch, forced: where it can't run, the call is an error and nothing else runs.

torch 2.11: `torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION)` leaves `scaled_dot_product_attention` no other
kernel. [B, H, S, D] with any strides whose last is 1, so the projection's views go in without a copy; FP16 or BF16, D a
multiple of 8 up to 128. Measured on one H200 (torch 2.11 + CUDA 13.0, cuDNN 9.19): 72.8 ms at S = 37,810, 563 TFLOP/s
(performance.md).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts


class CudnnSdpaAttention(Kernel):
    name = "cudnn_sdpa"
    exact = True
    tolerance = 0.02

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if no_cuda := device.why_no_cuda():
            return no_cuda
        if device.cudnn is None:
            return "this PyTorch has no cuDNN"
        if device.capability is None or device.capability < (8, 0):
            return f"needs SM 8.0, and this is {device.told_capability}"
        return None

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return out.transpose(1, 2)
