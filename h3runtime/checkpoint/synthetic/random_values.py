"""Pseudo-random numbers that are the same bits on every machine and in every version of the libraries.

A tensor's numbers come from its own name and a seed, so adding a tensor changes no other. Philox gives raw integers;
from there on only exactly rounded arithmetic is used (no logarithm, no matmul), hence uniform and not normal numbers.
Fed by `recipes` with names; it knows no model.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

SQRT3 = math.sqrt(3.0)
"""Half-width of the uniform distribution of variance 1."""


def uniform(name: str, shape: tuple[int, ...], seed: int, std: float = 1.0, mean: float = 0.0) -> torch.Tensor:
    """fp32 of `shape`, uniform about `mean` with standard deviation `std`."""
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    count = math.prod(shape)
    raw = np.random.Philox(key=key).random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]
    # 24 random bits, centred and scaled by powers of two: exact in fp32; the one rounding is the last multiplication.
    unit = ((raw >> 8).astype(np.float32) - np.float32(2**23 - 0.5)) * np.float32(2.0**-23)
    values = unit * np.float32(std * SQRT3) + np.float32(mean)
    return torch.from_numpy(values.reshape(shape))
