"""FlashAttention-4, the CuTe DSL implementation (PyPI `flash-attn-4`, 4.0.0b36 and later), in BF16.

`flash_attn.cute.flash_attn_func(q, k, v)` on [B, S, H, D] gives (out, None); softmax scale 1/sqrt(D) by default, no
mask. Any strides go in that keep 16 bytes of alignment with a last stride of 1, which views of the projection do;
others it copies by itself. Kernels for SM 8.x to 12.x (`_flash_attn_fwd`: WGMMA on 9.0, tcgen05 on 10.x, the SM 8.0 MMA
on 12.x), compiled once per head size at the first call (seconds). Measured on one H200: 61.2 ms at S = 37,810, 669
TFLOP/s.
"""

from __future__ import annotations

from importlib import import_module

import torch

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts


class Fa4Attention(Kernel):
    name = "fa4"
    exact = True
    tolerance = 0.02

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if no_cuda := device.why_no_cuda():
            return no_cuda
        if device.capability is None or not 8 <= device.capability[0] <= 12:
            return f"has kernels for SM 8.x to 12.x, and this is {device.told_capability}"
        return device.why_without("flash_attn", "cute/interface")

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = import_module("flash_attn.cute").flash_attn_func(q, k, v)[0]
        return out
