"""awq_w4a16."""

import torch

from h3runtime.quant.stored import AwqInt4Weight


def dequantize(weight: AwqInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    raise NotImplementedError
