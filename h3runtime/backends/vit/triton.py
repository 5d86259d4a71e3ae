"""`triton`: our own kernels, one pass over memory for each step, and cuDNN's attention; CUDA only.

Gated values and residual sums equal the definition bit for bit; norms add their squares in another order, which moves
at most one element in a thousand by one ulp; attention is another kernel of the same precision. A clip of random
weights at the published sizes, decoded 14 tiles at once, was 59.3 dB PSNR from the definition's, of one tile after
another. Imports `h3_kernels`, and Triton with it, at the first call. Fed by the blocks; holds nothing.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from h3runtime.backends.vit.base import Activation
from h3runtime.quant.row_codes import RowCodes

if TYPE_CHECKING:
    from h3_kernels.vae import Rows

CAPABILITY: Final = (8, 0)
"""The first for which these were written: cuDNN's fused attention."""
ATTENTION: Final = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""Which kernel of PyTorch's attends, the first that takes the call: cuDNN takes no fp32."""


class TritonSteps:
    name = "triton"
    grade = "validated"
    gives_codes = True

    def why_unavailable(self, device: torch.device) -> str | None:
        if device.type != "cuda":
            return f"needs a CUDA device, not {device.type}"
        if find_spec("triton") is None:
            return "the package triton isn't installed"
        found = torch.cuda.get_device_capability(device)
        if found < CAPABILITY:
            return f"needs SM {CAPABILITY[0]}.{CAPABILITY[1]}, this is SM {found[0]}.{found[1]}"
        return None

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, codes: bool = False) -> Activation:
        from h3_kernels import vae

        return _activation(vae.norm(x.flatten(0, 1), weight, eps, codes=codes), x)

    def add_norm(
        self,
        x: torch.Tensor,
        update: torch.Tensor,
        scale: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        codes: bool = False,
        owed: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Activation]:
        from h3_kernels import vae

        rows = vae.add_norm_(x.flatten(0, 1), update.flatten(0, 1), scale, weight, eps, codes=codes, owed=owed)
        return x, _activation(rows, x)

    def attend(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        eps: float,
        *,
        codes: bool = False,
        owed: torch.Tensor | None = None,
    ) -> Activation:
        from h3_kernels import vae

        batch, tokens, heads, _, width = qkv.shape
        made = vae.norm_rotate(qkv.flatten(0, 1), cos[:, 0], sin[:, 0], eps, owed)
        q, k = made.view(2, batch, tokens, heads, width).transpose(2, 3)
        v = qkv[..., 2, :].transpose(1, 2)
        with sdpa_kernel(ATTENTION, set_priority=True):
            out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if codes:
            return _activation(vae.attended(out.flatten(0, 1), width, owed), out)
        if owed is not None:
            out += owed.view(heads, 3, width)[:, 2].flatten()
        return out.nan_to_num_(0.0, math.inf, -math.inf)

    def gated(self, x: torch.Tensor, *, codes: bool = False, owed: torch.Tensor | None = None) -> Activation:
        from h3_kernels import vae

        return _activation(vae.gated(x.flatten(0, 1), codes=codes, owed=owed), x)


def _activation(rows: Rows, like: torch.Tensor) -> Activation:
    """Rows [B*S, K] as a linear reads them; like [B, S, ..]."""
    if isinstance(rows, torch.Tensor):
        return rows.view(*like.shape[:2], -1)
    return RowCodes(rows.codes, rows.scales.unsqueeze(1), like.dtype)
