"""Two 4-bit codes in a byte, even column in the LOW nibble: the order of the integer formats (NVFP4's is opposite).

Read by the 4-bit integer formats. Codes are unsigned 0..15 here; what a code stands for is a table of 16 values.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def pack(codes: torch.Tensor) -> torch.Tensor:
    """codes, integers 0..15 [N, K] (K even) -> int8 [N, K/2]."""
    raw = codes.to(torch.uint8)
    return (raw[:, 0::2] | (raw[:, 1::2] << 4)).view(torch.int8)


def lookup(packed: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """packed int8 or uint8 [N, K/2], values [16] by code -> [N, K] in the dtype of `values`."""
    pairs = torch.stack([values.repeat(16), values.repeat_interleave(16)], dim=1)
    return F.embedding(packed.view(torch.uint8).int(), pairs).flatten(1)


def signed_values(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[16]: two's complement, 0..7 then -8..-1."""
    codes = torch.arange(16, device=device)
    return ((codes + 8) % 16 - 8).to(dtype)


def offset_values(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[16]: code - 8."""
    return (torch.arange(16, device=device) - 8).to(dtype)
