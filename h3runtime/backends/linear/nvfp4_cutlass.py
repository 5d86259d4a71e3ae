"""NVFP4 times NVFP4 (W4A4) by a CUTLASS kernel of our own (`h3_kernels.nvfp4_cutlass`), on SM 10.0, 10.3, 12.0, 12.1.

    y = bf16((s_a s_w) * (a w^T in FP32)), + b           the packed activation and the stored weight, as they are

Any number of rows, no padding. It gives BF16 only. The library is found prebuilt, or compiled when the first weight is
prepared, which takes nvcc, CUTLASS's headers and about 75 s; a request that switches a server to it which was loaded
for another backend waits for that. Never run by us, since no such GPU was at hand: it compiles, its library looks for
scales where they are, and what it is handed is tested. The definition is `nvfp4_emulated`. Fed and read as
`nvfp4_base` says.
"""

from __future__ import annotations

from typing import Any

import torch

from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight, StoredWeight


class Nvfp4CutlassLinear(Nvfp4LinearBase):
    name = "nvfp4_cutlass"
    note = "compiles for Blackwell and was never run there by us"

    def why_unavailable(self, device: torch.device) -> str | None:
        facts = linear_facts(device)
        return self.why_not(facts) or self.why_unpacked(facts)

    def why_not(self, facts: LinearFacts) -> str | None:
        if facts.kind != "cuda":
            return f"needs a CUDA device, and this is {facts.kind}"
        from h3_kernels import nvfp4_cutlass

        return nvfp4_cutlass.why_unavailable(facts.capability)

    def prepare(self, stored: StoredWeight, device: torch.device) -> Any:
        from h3_kernels import nvfp4_cutlass

        if self.why_unfit(stored) is None:
            nvfp4_cutlass.load(device)
        return super().prepare(stored, device)

    def product(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        from h3_kernels import nvfp4_cutlass

        if rows.dtype is not torch.bfloat16:
            raise ValueError(f"nvfp4_cutlass gives torch.bfloat16, and x is {rows.dtype}")
        alpha = rows.tensor_scale * weight.tensor_scale.reshape(())
        operands = (rows.codes, rows.block_scale, weight.codes, weight.block_scale)
        return nvfp4_cutlass.product(*operands, alpha, rows.rows)[:, : weight.shape[0]]
