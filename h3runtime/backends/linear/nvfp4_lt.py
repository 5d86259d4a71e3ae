"""NVFP4 times NVFP4 (W4A4) by cuBLASLt through our own binding (`h3_kernels.cublaslt`), from SM 10.0 on.

    y = bf16((s_a s_w) * (a w^T in FP32)), + b           alpha = s_a s_w stays on the device

The same library and the same offer of workspace as comfy-kitchen's product, so the same kernels by default; but any
number of rows without padding, and handle, descriptors, layouts and algorithm are made once for a shape instead of at
every call. On SM 10.3 it passes over a kernel that NVIDIA says may be wrong. Never run by us: no such GPU was at hand;
the binding was held to PyTorch's BF16 and FP8 products on an H200 (`tests/gpu/test_cublaslt.py`), what it is handed in
NVFP4 is tested with a library that is played. The definition is `nvfp4_emulated`. Fed and read as `nvfp4_base` says.
"""

from __future__ import annotations

from typing import Any

import torch

from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.fc2_schedule import ScheduledLinear
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight, StoredWeight

SMALLEST_CAPABILITY = (10, 0)


class Nvfp4LtLinear(ScheduledLinear):
    name = "nvfp4_lt"
    proof = "never run by us: no GPU that multiplies NVFP4 was at hand"

    def why_unavailable(self, device: torch.device) -> str | None:
        facts = linear_facts(device)
        return self.why_not(facts) or self.why_unpacked(facts)

    def why_not(self, facts: LinearFacts) -> str | None:
        return facts.why_older_than(SMALLEST_CAPABILITY) or facts.why_no_fp4_cublaslt()

    def prepare(self, stored: StoredWeight, device: torch.device) -> Any:
        """The handle too, at the first layer."""
        from h3_kernels import cublaslt

        there = super().prepare(stored, device)
        if self.why_unfit(there) is None:
            cublaslt.on_device(there.codes.device)
        return there

    def usual(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        from h3_kernels import cublaslt

        lt, codes = cublaslt.on_device(weight.codes.device), rows.codes[: rows.rows]
        plan = lt.plan(cublaslt.nvfp4_shape(codes, weight.codes, rows.dtype))
        alpha = rows.tensor_scale * weight.tensor_scale.reshape(())
        scales = {"x_scale": rows.block_scale, "w_scale": weight.block_scale}
        return lt.multiply(plan, codes, weight.codes, alpha, **scales)[:, : weight.shape[0]]
