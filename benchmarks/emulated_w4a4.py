"""What 4-bit activations do to a clip, before there is a kernel: the reference linear, its input rounded to NVFP4.

A linear whose weight is stored as NVFP4 gets its activation quantised and decoded again first, 16 values a block, one
global scale over the whole activation as it comes (or the stored `input_scale`); every other linear, and one whose
marker forbids it, is the reference's. The matmul then runs on plain numbers, so this says nothing about time. Read by
`quality_engines`.
"""

from __future__ import annotations

import torch

from benchmarks.kept_weights import KeptDequant
from h3runtime.quant import nvfp4
from h3runtime.quant.stored import Nvfp4Weight, StoredWeight


class EmulatedW4A4(KeptDequant):
    """An AWQ scale multiplies the activation before it is rounded, as it would before a kernel rounds it."""

    name = "emulated_w4a4"
    grade = "experimental"

    def apply(self, x: torch.Tensor, resident: StoredWeight) -> torch.Tensor:
        if not isinstance(resident, Nvfp4Weight) or resident.full_precision:
            return super().apply(x, resident)
        return self.multiply(nvfp4.rounded(self.scaled(x, resident), resident.input_scale), resident)
