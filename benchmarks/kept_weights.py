"""The reference linear with its weights decoded once: the numbers of `dequant`, in less time where memory is cheap.

A small model's forwards are so short that decoding its weights anew for each of them takes longer than all the rest.
What is kept is what the reference would make of the stored weight, for each dtype that it meets, so that results are
bit-equal to the reference's. Fed and read by `quality_engines`; `emulated_w4a4` builds on it.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.quant.stored import StoredWeight


class KeptDequant(DequantLinear):
    """Of one engine: what it has decoded stays as long as it does."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, torch.dtype], tuple[StoredWeight, torch.Tensor]] = {}

    def apply(self, x: torch.Tensor, resident: StoredWeight) -> torch.Tensor:
        return self.multiply(self.scaled(x, resident), resident)

    def scaled(self, x: torch.Tensor, resident: StoredWeight) -> torch.Tensor:
        """With an AWQ scale, if the weight has one."""
        scale = getattr(resident, "pre_quant_scale", None)
        return x if scale is None else x * scale.to(x.dtype)

    def multiply(self, x: torch.Tensor, resident: StoredWeight) -> torch.Tensor:
        """x W^T + b for an activation that was scaled already."""
        bias = None if resident.bias is None else resident.bias.to(x.dtype)
        return F.linear(x, self._weight(resident, x.dtype), bias)

    def _weight(self, resident: StoredWeight, dtype: torch.dtype) -> torch.Tensor:
        """Kept beside the stored weight itself, whose id thus can't become another one's."""
        key = id(resident), dtype
        if key not in self._kept:
            self._kept[key] = resident, dense(resident, dtype)
        return self._kept[key][1]
