"""NVFP4 times NVFP4 (W4A4) by comfy-kitchen's block-scaled GEMM, on Blackwell: the baseline of the `nvfp4` family.

    y = `scaled_mm_nvfp4` cropped to [M, N], + b             alpha = s_a s_w multiplies before the rounding

The library's tensor class, which replaces a product that fails by a decoded one without a word, is not used: what fails
here is an error. What `auto` takes for weights stored as NVFP4 where it can run (`policy`): it is what ComfyUI does
with them there. We haven't run it, for want of such a GPU: its packing is held to its definition on an H200, and the
self-test holds it on the machine that it runs on. Fed and read as `nvfp4_base` says.
"""

from __future__ import annotations

import torch

from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.fc2_schedule import ScheduledLinear
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight

SMALLEST_CAPABILITY = (10, 0)


class Nvfp4Linear(ScheduledLinear):
    name = "nvfp4"
    grade = "validated"
    proof = "not run by us on a GPU that multiplies NVFP4: none was at hand; the self-test holds it to its definition"

    def why_unavailable(self, device: torch.device) -> str | None:
        facts = linear_facts(device)
        return self.why_not(facts) or self.why_unpacked(facts)

    def why_not(self, facts: LinearFacts) -> str | None:
        return facts.why_older_than(SMALLEST_CAPABILITY) or facts.why_no_kitchen()

    def usual(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        import comfy_kitchen

        y: torch.Tensor = comfy_kitchen.scaled_mm_nvfp4(
            rows.codes,
            weight.codes,
            tensor_scale_a=rows.tensor_scale,
            tensor_scale_b=weight.tensor_scale,
            block_scale_a=rows.block_scale,
            block_scale_b=weight.block_scale,
            out_dtype=rows.dtype,
        )
        return y[: rows.rows, : weight.shape[0]]
