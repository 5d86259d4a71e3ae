# mypy: ignore-errors
"""Rounding inside Triton kernels: to the dtype where PyTorch rounds between two operations, and to FP8.

Device code only. On a GPU a cast rounds to nearest, ties to even. Triton's interpreter on a CPU cuts off instead, so
there the bits are rounded by hand first; `INTERPRETED` is a constant of the compiled kernel and costs nothing.

    E4M3: 3 bits of mantissa down to 2^-6, multiples of 2^-9 below, largest 448
"""

import triton
import triton.language as tl


@triton.jit
def _keep_bits(x, KEPT: tl.constexpr):
    """fp32 x with KEPT explicit bits of mantissa, to nearest even; finite x."""
    CUT: tl.constexpr = 23 - KEPT
    bits = x.to(tl.int32, bitcast=True)
    odd = (bits >> CUT) & 1
    bits = (bits + ((1 << (CUT - 1)) - 1) + odd) & -(1 << CUT)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def rounded(x, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """fp32 -> fp32 that `dtype` (bf16 or fp32) can hold."""
    if dtype == tl.bfloat16:
        if INTERPRETED:
            return _keep_bits(x, 7)
        return x.to(tl.bfloat16).to(tl.float32)
    return x


@triton.jit
def to_e4m3(x, INTERPRETED: tl.constexpr):
    """fp32 in [-448, 448] -> E4M3."""
    if INTERPRETED:
        # Adding 1.5 * 2^14 leaves multiples of 2^-9, the spacing below 2^-6; a zero keeps its sign, as the cast has it.
        small = (x + 24576.0) - 24576.0
        small = tl.where(small == 0.0, x * 0.0, small)
        x = tl.where(tl.abs(x) < 0.015625, small, _keep_bits(x, 3))
    return x.to(tl.float8e4nv)
