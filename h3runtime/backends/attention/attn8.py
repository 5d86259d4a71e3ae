"""Our own 8-bit attention for Hopper: `h3_kernels.attention8`, INT8 q and k, E4M3 P and v.

`attention8(q, k, v)` on [B, S, H, 128] strided views of BF16 gives BF16 [B, S, H, 128]; its arithmetic and its figures
are in the kernel's own docstring. Experimental until it was run and has a quality table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import torch

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts

TILE: Final = 128
CHUNK: Final = 512
"""Rows that the kernel pads to, and whose means and largest values one program takes."""
FP32: Final = 4


class H3Attn8Attention(Kernel):
    name = "h3_attn8"
    grade = "experimental"
    head_dims = (128,)

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        return (
            device.why_not_on(((9, 0),))
            or device.why_without("h3_kernels", "attention8")
            or device.why_without("triton")
        )

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        """q, k and v in 8 bits, padded to whole tiles, the scales of q, and of every chunk four rows of statistics."""
        padded = -(-rows // TILE) * TILE
        chunks = -(-rows // CHUNK)
        return heads * (padded * (3 * head_dim + FP32) + 4 * FP32 * chunks * head_dim)

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = import_module("h3_kernels.attention8").attention8(q, k, v)
        return out
