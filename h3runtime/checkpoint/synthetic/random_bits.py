"""Random valid codes of any stored dtype at memory speed: random bytes, masked and shifted, nothing else.

    stored = (random & keep) + base        on unsigned integers of the dtype's width

With `keep` = the sign bit and the bits of four binades, floating numbers come out log-uniform over four binades and
of both signs: their kurtosis is 2.8, a normal distribution's 3, their largest is 2.35 standard deviations. `base` sets
the spread in steps of the last mantissa bit (of BF16's in F32). The same operation makes FP8 codes that are never NaN,
positive scales, and, with everything kept, NVFP4 pairs and INT8 codes.

SFC64 gives the bytes of each run by its own name, so that any number of threads makes the same file; and numpy
leaves the interpreter to the other threads meanwhile. Fed by `full_size`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BINADES = 4


@dataclass(frozen=True, slots=True)
class Bits:
    """width: bytes of a stored value. keep, base: as above. rms: of the values, where they are numbers."""

    width: int
    keep: int
    base: int
    rms: float

    def fill(self, key: str, nbytes: int) -> memoryview:
        """`nbytes` stored bytes, the same for the same key; a multiple of the width."""
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
        raw = np.random.SFC64(np.random.SeedSequence(seed)).random_raw(-(-nbytes // 8)).astype("<u8", copy=False)
        values = raw.view(f"<u{self.width}")
        if self.keep != (1 << 8 * self.width) - 1:
            np.bitwise_and(values, self.keep, out=values)
        if self.base:
            np.add(values, self.base, out=values)
        return raw.view(np.uint8)[:nbytes].data


NVFP4_PAIRS = Bits(1, 0xFF, 0, float(np.sqrt(8.5625)))
"""Two codes a byte. The mean square of 0, .5, 1, 1.5, 2, 3, 4, 6 is 8.5625 (checkpoint-formats §3)."""
INT8_CODES = Bits(1, 0xFF, 0, float(np.sqrt(2**16 - 1) / np.sqrt(12)))

MANTISSA = {torch.float32: 7, torch.bfloat16: 7, torch.float16: 10, torch.float8_e4m3fn: 3}
"""Bits below the exponent; F32 is treated as BF16 with random bits behind."""


def floats(dtype: torch.dtype, rms: float) -> Bits:
    """Numbers of both signs with the root mean square nearest to `rms`."""
    return _fitted(dtype, rms, BINADES, signed=True)


def positive(dtype: torch.dtype, rms: float, binades: int) -> Bits:
    """Positive numbers over so many binades, log-uniform, with the root mean square nearest to `rms`."""
    return _fitted(dtype, rms, binades, signed=False)


def _fitted(dtype: torch.dtype, rms: float, binades: int, *, signed: bool) -> Bits:
    count = binades << MANTISSA[dtype]
    coarse = torch.bfloat16 if dtype is torch.float32 else dtype
    sizes = _squares(coarse)
    # The mean square of `count` codes from each base on; larger bases are larger numbers.
    totals = np.concatenate([[0.0], np.cumsum(sizes)])
    means = np.sqrt((totals[count:] - totals[:-count]) / count)
    base = int(np.abs(means - rms).argmin())
    width = coarse.itemsize
    keep = (count - 1) | (signed << (8 * width - 1))
    if dtype is torch.float32:
        return Bits(4, keep << 16 | 0xFFFF, base << 16, float(means[base]))
    return Bits(width, keep, base, float(means[base]))


def _squares(dtype: torch.dtype) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of all positive finite numbers of `dtype` in ascending order, which is that of their codes."""
    codes = np.arange(1 << (8 * dtype.itemsize - 1), dtype=f"<u{dtype.itemsize}")
    values = torch.from_numpy(codes.view(f"<i{dtype.itemsize}")).view(dtype).double().numpy()
    squares: np.ndarray[Any, np.dtype[np.float64]] = np.square(values[np.isfinite(values)])
    return squares
