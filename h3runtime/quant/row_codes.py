"""An activation in FP8, as a product with a scale a row, or one for all, reads it; what a producer hands to a linear.

Made by `backends.fused`, by the rule of `fp8.quantize_rows` or `fp8.codes_of` and bit for bit with it; read by
`backends.linear.fp8`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowCodes:
    """codes E4M3 [M, K], scale fp32 [M, 1] or []: code * scale stands for a value of `dtype`, which the product will
    have. values [M, K] in `dtype`: what was rounded, for who else reads it; None where nobody does."""

    codes: torch.Tensor
    scale: torch.Tensor
    dtype: torch.dtype
    values: torch.Tensor | None = None
