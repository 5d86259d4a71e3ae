"""asym_w4a8."""

import torch

from h3runtime.quant.stored import AsymInt4Weight


def dequantize(weight: AsymInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    raise NotImplementedError
