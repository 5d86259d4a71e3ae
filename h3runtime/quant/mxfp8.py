"""mxfp8."""

import torch

from h3runtime.quant.stored import Mxfp8Weight


def dequantize(weight: Mxfp8Weight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in `dtype`: FP32 arithmetic, one cast at the end."""
    raise NotImplementedError
