"""`triton`: our own kernels, one pass over memory for each step, and cuDNN's attention; CUDA only.

Gated values and residual sums equal the definition bit for bit; norms add their squares in another order, which moves
at most one element in a thousand by one ulp; attention is another kernel of the same precision. A decoded clip is
within 50 dB PSNR of the definition's (performance.md). Imports `h3_kernels`, and Triton with it, at the first call.
Fed by the blocks; holds nothing.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Final

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CAPABILITY: Final = (8, 0)
"""The first for which these were written: cuDNN's fused attention."""
ATTENTION: Final = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""Which kernel of PyTorch's attends, the first that takes the call: cuDNN takes no fp32."""


class TritonSteps:
    name = "triton"
    grade = "validated"

    def why_unavailable(self, device: torch.device) -> str | None:
        if device.type != "cuda":
            return f"needs a CUDA device, not {device.type}"
        if find_spec("triton") is None:
            return "the package triton isn't installed"
        found = torch.cuda.get_device_capability(device)
        if found < CAPABILITY:
            return f"needs SM {CAPABILITY[0]}.{CAPABILITY[1]}, this is SM {found[0]}.{found[1]}"
        return None

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        from h3_kernels import vae

        return vae.norm(x.flatten(0, 1), weight, eps).view(x.shape)

    def add_norm(
        self, x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from h3_kernels import vae

        return x, vae.add_norm_(x.flatten(0, 1), update.flatten(0, 1), scale, weight, eps).view(x.shape)

    def attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
        from h3_kernels import vae

        batch, tokens, heads, _, width = qkv.shape
        made = vae.norm_rotate(qkv.flatten(0, 1), cos[:, 0], sin[:, 0], eps)
        q, k = made.view(2, batch, tokens, heads, width).transpose(2, 3)
        v = qkv[..., 2, :].transpose(1, 2)
        with sdpa_kernel(ATTENTION, set_priority=True):
            out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).flatten(2).nan_to_num_(0.0, math.inf, -math.inf)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        from h3_kernels import vae

        return vae.gated(x.flatten(0, 1)).view(*x.shape[:2], -1)
