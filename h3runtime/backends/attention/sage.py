"""SageAttention 2's kernels by name, how q, k and v are laid out for them, and which one is for which architecture.

Read in the source of SageAttention 2.2.0 (github.com/thu-ml/SageAttention at d1a57a5, `sageattention/core.py`,
`quant.py`, `csrc/`). Every function takes (q, k, v, tensor_layout="NHD" | "HND", pv_accum_dtype=...), FP16 or BF16, any
strides with a last of 1; q and k become INT8 with one scale per warp or thread, v FP16 or E4M3 with one scale per
channel. `smooth_k` (on by default) subtracts k's mean over the rows, out of place. Head sizes below 64 and 128 are
padded. Accumulators of P V by their names there:

    sageattn_qk_int8_pv_fp16_cuda      fp32 | fp16+fp32 | fp16             _qattn_sm80, built for SM 8.0 and later
    sageattn_qk_int8_pv_fp16_triton    (FP16, added to FP32 every block)   Triton; "not usable" on SM 12.x by its source
    sageattn_qk_int8_pv_fp8_cuda       fp32+fp16 | fp32+fp32 | fp32        _qattn_sm89, built for SM 8.9 and later
    sageattn_qk_int8_pv_fp8_cuda_sm90  fp32+fp32                           _qattn_sm90, built for SM 9.0 alone

Two traps: the sm90 function returns memory that nothing wrote for `fp32+fp16`, which it doesn't have, so that is the
sm89 kernel on Hopper too; and the Triton quantiser counts elements in 32 bits, so q's strided view is too long from
S = 99,864 of 3 x 7168 numbers a row on; it is copied a block of rows before that (`arranged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import torch

from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.backends.policy import QkvLayout

PACKAGE: Final = "sageattention"
LONGEST_BLOCK: Final = 128
"""Rows that a quantiser addresses beyond the last one, masked."""


@dataclass(frozen=True, slots=True)
class SageKernel:
    """A function of the package, its arguments, and the compiled part that it needs. copies: bytes a value, as
    `base.Kernel` has them: q and k in INT8, and v in FP16, or turned round in BF16 and again in FP8."""

    function: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    part: str | None = None
    copies: float = 5.0

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        needed = ("_fused",) if self.part is None else ("_fused", self.part)
        if PACKAGE in device.libraries and device.major(PACKAGE) == 1:
            return f"needs SageAttention 2.x, and {device.told(PACKAGE)} is installed"
        return device.why_without(PACKAGE, *needed)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: QkvLayout) -> torch.Tensor:
        """[B, S, H, D] -> the same."""
        function: Any = getattr(import_module(PACKAGE), self.function)
        q, k, v = (arranged(x, layout) for x in (q, k, v))
        heads_first = layout == "contiguous_hnd"
        out: torch.Tensor = function(q, k, v, tensor_layout="HND" if heads_first else "NHD", **self.arguments)
        return out.transpose(1, 2) if heads_first else out


FP16: Final = SageKernel("sageattn_qk_int8_pv_fp16_cuda", {"pv_accum_dtype": "fp32"}, "_qattn_sm80", 4.0)
TRITON: Final = SageKernel("sageattn_qk_int8_pv_fp16_triton", copies=4.0)
FP8: Final = SageKernel("sageattn_qk_int8_pv_fp8_cuda", {"pv_accum_dtype": "fp32+fp32"}, "_qattn_sm89")
FP8PP: Final = SageKernel("sageattn_qk_int8_pv_fp8_cuda", {"pv_accum_dtype": "fp32+fp16"}, "_qattn_sm89")
FP8_HOPPER: Final = SageKernel(
    # v is padded to 128 rows beside all that.
    "sageattn_qk_int8_pv_fp8_cuda_sm90",
    {"pv_accum_dtype": "fp32+fp32"},
    "_qattn_sm90",
    7.0,
)
FP8PP_PER_WARP: Final = SageKernel(
    "sageattn_qk_int8_pv_fp8_cuda", {"pv_accum_dtype": "fp32+fp16", "qk_quant_gran": "per_warp"}, "_qattn_sm89"
)

BY_ARCHITECTURE: Final[Mapping[tuple[int, int], SageKernel]] = MappingProxyType(
    {
        (8, 0): FP16,
        (8, 6): TRITON,
        (8, 9): FP8PP,
        (9, 0): FP8_HOPPER,
        (12, 0): FP8PP_PER_WARP,
        (12, 1): FP8PP_PER_WARP,
    }
)
"""As `sageattn` itself dispatches; it asks the driver of every device at every call, so the row is taken from here."""


def arranged(x: torch.Tensor, layout: QkvLayout) -> torch.Tensor:
    """x [B, S, H, D] as `layout` says; a strided view is copied where 32 bits can't count its elements."""
    if layout == "contiguous_hnd":
        return x.transpose(1, 2).contiguous()
    if layout == "contiguous_nhd" or not counts_in_32_bits(x):
        return x.contiguous()
    return x


def layout_copies(layout: QkvLayout) -> float:
    """Bytes a value of `arranged` q, k and v."""
    return 0.0 if layout == "strided_nhd" else 6.0


def counts_in_32_bits(x: torch.Tensor) -> bool:
    return (x.shape[1] + LONGEST_BLOCK) * x.stride(1) < 2**31
