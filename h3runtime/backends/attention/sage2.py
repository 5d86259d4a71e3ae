"""SageAttention 2.x: INT8 q and k, FP8 or FP16 v, the kernel that its own dispatch takes on each architecture.

What its functions take and which one is for which architecture is in `sage`. Measured on one H200 (sm90, INT8 q k, FP8
P V): 52.2 ms at S = 37,810, 785 TFLOP/s, 3.8 % relative error on random numbers (performance.md).
"""

from __future__ import annotations

import torch

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.backends.attention.sage import BY_ARCHITECTURE, layout_copies
from h3runtime.backends.policy import QkvLayout


class Sage2Attention(Kernel):
    """layout: `H3_SAGE_QKV_LAYOUT`."""

    name = "sage2"

    def __init__(self, layout: QkvLayout = "strided_nhd") -> None:
        self._layout = layout
        self.copies = max(kernel.copies for kernel in BY_ARCHITECTURE.values()) + layout_copies(layout)

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if why_not := device.why_not_on(tuple(BY_ARCHITECTURE)):
            return why_not
        assert device.capability is not None
        return BY_ARCHITECTURE[device.capability].why_unavailable(device)

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return BY_ARCHITECTURE[torch.cuda.get_device_capability(q.device)](q, k, v, self._layout)
