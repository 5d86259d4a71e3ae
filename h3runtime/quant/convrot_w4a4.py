"""convrot_w4a4."""

import torch

from h3runtime.quant.stored import ConvrotInt4Weight


def dequantize(weight: ConvrotInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    raise NotImplementedError
