"""`kj_sage_*`: one kernel of SageAttention 2.x each, by name and without its dispatch, as KJNodes' workflows name them.

    kj_sage_cuda    qk_int8_pv_fp16_cuda, FP32 accumulation
    kj_sage_triton  qk_int8_pv_fp16_triton
    kj_sage_fp8     qk_int8_pv_fp8_cuda, fp32+fp32; on SM 9.0 its sm90 variant, the same accumulator
    kj_sage_fp8pp   qk_int8_pv_fp8_cuda, fp32+fp16; on SM 9.0 too, since the sm90 variant has no such accumulator

Signatures, layouts and scales are in `sage`. On one H200 `kj_sage_fp8pp`, which is no kernel for Hopper, takes 109 ms
at S = 37,810 where `kj_sage_fp8` takes 55; 24 clips of h3-nano keep every verdict of the judge at SSIM 0.9991 with
either (benchmarks/LOG.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.backends.attention.sage import FP8, FP8_HOPPER, FP8PP, FP16, TRITON, SageKernel, layout_copies
from h3runtime.backends.policy import QkvLayout

KernelOf = Mapping[tuple[int, int], SageKernel]

EVERY: Final = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1))
"""What SageAttention 2.2.0's setup.py builds for."""
WITH_FP8: Final = EVERY[2:]
KERNELS: Final[Mapping[str, KernelOf]] = MappingProxyType(
    {
        "kj_sage_cuda": dict.fromkeys(EVERY, FP16),
        "kj_sage_triton": dict.fromkeys(EVERY[:5], TRITON),
        "kj_sage_fp8": dict.fromkeys(WITH_FP8, FP8) | {(9, 0): FP8_HOPPER},
        "kj_sage_fp8pp": dict.fromkeys(WITH_FP8, FP8PP),
    }
)


class KjSageAttention(Kernel):
    """name: one of `KERNELS`. layout: `H3_SAGE_QKV_LAYOUT`."""

    def __init__(self, name: str, layout: QkvLayout = "strided_nhd") -> None:
        self.name = name
        self._layout, self._kernels = layout, KERNELS[name]
        self.copies = max(kernel.copies for kernel in self._kernels.values()) + layout_copies(layout)

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if why_not := device.why_not_on(tuple(self._kernels)):
            return why_not
        assert device.capability is not None
        return self._kernels[device.capability].why_unavailable(device)

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self._kernels[torch.cuda.get_device_capability(q.device)](q, k, v, self._layout)
