"""SageAttention 3: FP4 q, k, P and v on Blackwell, through the package `sageattn3`.

Read in its source (github.com/thu-ml/SageAttention at d1a57a5, `sageattention3_blackwell/sageattn3/api.py`):
`sageattn3_blackwell(q, k, v, per_block_mean=True)` on [B, H, S, D], D 64 or 128. q, k and v are padded to 128 rows and
copied by itself; it subtracts k's mean from the caller's k in place, so it gets copies of all three, which it needs
contiguous in any case. q's mean over each 128 rows goes in as a correction of the scores, fp32 [B, H, S/128, S]: 2.5 GB
at S = 37,810 and 56 heads. setup.py builds for SM 10.0, 12.0 and 12.1. Never run by us: experimental until its quality
table says otherwise.
"""

from __future__ import annotations

from importlib import import_module

import torch

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts

BUILT_FOR = ((10, 0), (12, 0), (12, 1))
ROWS_OF_A_MEAN = 128
EXTENSIONS = ("fp4attn_cuda", "fp4quant_cuda")


class Sage3Attention(Kernel):
    name = "sage3"
    grade = "experimental"
    head_dims = (64, 128)
    tolerance = 0.5
    copies = 16.0
    """Three copies, three more padded, q again without its means, all three in FP4."""

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if why_not := device.why_not_on(BUILT_FOR) or device.why_without("sageattn3"):
            return why_not
        missing = [name for name in EXTENSIONS if name not in device.parts]
        return f"its compiled modules {', '.join(missing)} are not there" if missing else None

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        means = -(-rows // ROWS_OF_A_MEAN)
        return super().workspace_bytes(rows, heads, head_dim) + 4 * heads * means * rows

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2).clone(memory_format=torch.contiguous_format) for x in (q, k, v))
        out: torch.Tensor = import_module("sageattn3").sageattn3_blackwell(q, k, v)
        return out.transpose(1, 2)
