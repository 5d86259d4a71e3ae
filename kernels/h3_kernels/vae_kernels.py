# mypy: ignore-errors
"""Device code of the video decoder's steps; `vae` launches it and says what every argument is.

Arithmetic is fp32; a value is rounded to the tensor's dtype (fp16 or fp32) wherever the definition stores it. Kernels
are compiled without contraction of a product and a sum, which would skip a rounding.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from h3_kernels.rounding import to_e4m3

E4M3_MAX = tl.constexpr(448.0)
SMALLEST_SCALE = tl.constexpr(1e-30)


@triton.jit
def _stored(x, dtype: tl.constexpr):
    """fp32 -> fp32 that `dtype` can hold."""
    return x.to(dtype).to(tl.float32)


@triton.jit
def _plus(y, owed, at, inside, dtype: tl.constexpr, OWED: tl.constexpr):
    """y + owed[at], rounded; y where there is nothing to add."""
    if OWED:
        y = _stored(y + tl.load(owed + at, mask=inside, other=0.0).to(tl.float32), dtype)
    return y


@triton.jit
def _store_row(
    y, out, scales, row, width, j, inside, dtype: tl.constexpr, FP8: tl.constexpr, INTERPRETED: tl.constexpr
):
    """A whole row, rounded already, as it is; or as E4M3 codes and the row's scale, by the rule of `quant.fp8`."""
    if FP8:
        scale = tl.maximum(tl.div_rn(tl.max(tl.abs(y), 0), E4M3_MAX), SMALLEST_SCALE)
        y = y * tl.div_rn(1.0, scale)
        y = tl.minimum(tl.maximum(y, -E4M3_MAX), E4M3_MAX)
        tl.store(out + row * width + j, to_e4m3(y, INTERPRETED), mask=inside)
        tl.store(scales + row, scale)
    else:
        tl.store(out + row * width + j, y.to(dtype), mask=inside)


@triton.jit
def add_norm_kernel(
    x,
    update,
    owed,
    scale,
    weight,
    out,
    scales,
    width,
    eps,
    ADD: tl.constexpr,
    OWED: tl.constexpr,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One row: x += scale*(update + owed) where ADD, then out = rms(x)*weight."""
    row = tl.program_id(0).to(tl.int64)
    at = row * width
    j = tl.arange(0, BLOCK)
    inside = j < width
    dtype: tl.constexpr = x.dtype.element_ty
    y = tl.load(x + at + j, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        u = tl.load(update + at + j, mask=inside, other=0.0).to(tl.float32)
        u = _plus(u, owed, j, inside, dtype, OWED)
        s = tl.load(scale + j, mask=inside, other=0.0).to(tl.float32)
        # The product of two fp16 is exact: one rounding either way. In fp32 PyTorch contracts it, too.
        y = _stored(tl.fma(u, s, y), dtype)
        tl.store(x + at + j, y.to(dtype), mask=inside)
    r = tl.rsqrt(tl.div_rn(tl.sum(y * y, 0), width.to(tl.float32)) + eps)
    w = tl.load(weight + j, mask=inside, other=0.0).to(tl.float32)
    _store_row(_stored(y * r * w, dtype), out, scales, row, width, j, inside, dtype, FP8, INTERPRETED)


@triton.jit(do_not_specialize=["tokens"])
def norm_rotate_kernel(
    qkv,
    owed,
    out,
    cos,
    sin,
    tokens,
    heads,
    part_size,
    eps,
    HALF: tl.constexpr,
    TAIL: tl.constexpr,
    OWED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
):
    """q and k of all heads of one token; their halves that turn, and the tail that doesn't, are tiles of their own."""
    row = tl.program_id(0).to(tl.int64)
    width: tl.constexpr = 2 * HALF + TAIL
    dtype: tl.constexpr = qkv.dtype.element_ty
    head = tl.arange(0, HEADS)[:, None]
    j = tl.arange(0, HALF_BLOCK)[None, :]
    t = tl.arange(0, TAIL_BLOCK)[None, :]
    in_half = (head < heads) & (j < HALF)
    in_tail = (head < heads) & (t < TAIL)
    turn = (row % tokens) * HALF + j
    c = tl.load(cos + turn, mask=j < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + turn, mask=j < HALF, other=0.0).to(tl.float32)
    for part in tl.static_range(2):
        place = part * width + head * 3 * width
        x = qkv + row * heads * 3 * width + place
        y = out + part * part_size + row * heads * width + head * width
        first = tl.load(x + j, mask=in_half, other=0.0).to(tl.float32)
        second = tl.load(x + HALF + j, mask=in_half, other=0.0).to(tl.float32)
        tail = tl.load(x + 2 * HALF + t, mask=in_tail, other=0.0).to(tl.float32)
        first = _plus(first, owed, place + j, in_half, dtype, OWED)
        second = _plus(second, owed, place + HALF + j, in_half, dtype, OWED)
        tail = _plus(tail, owed, place + 2 * HALF + t, in_tail, dtype, OWED)
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(tail * tail, 1)
        r = tl.rsqrt(tl.div_rn(squares, width * 1.0) + eps)[:, None]
        first = _stored(first * r, dtype)
        second = _stored(second * r, dtype)
        a = _stored(first * c, dtype) - _stored(second * s, dtype)
        b = _stored(second * c, dtype) + _stored(first * s, dtype)
        tl.store(y + j, a.to(dtype), mask=in_half)
        tl.store(y + HALF + j, b.to(dtype), mask=in_half)
        tl.store(y + 2 * HALF + t, (tail * r).to(dtype), mask=in_tail)


@triton.jit
def gated_kernel(
    x,
    owed,
    out,
    scales,
    width,
    OWED: tl.constexpr,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A piece of one row of x [2*width], all of it where FP8: silu(gate)*value."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    dtype: tl.constexpr = x.dtype.element_ty
    gate = tl.load(x + row * 2 * width + j, mask=inside, other=0.0).to(tl.float32)
    gate = _plus(gate, owed, j, inside, dtype, OWED)
    value = tl.load(x + row * 2 * width + width + j, mask=inside, other=0.0).to(tl.float32)
    value = _plus(value, owed, width + j, inside, dtype, OWED)
    # CUDA's own expf and a true division, as PyTorch's silu has them.
    e = tl.exp(-gate) if INTERPRETED else libdevice.exp(-gate)
    y = _stored(_stored(tl.div_rn(gate, 1.0 + e), dtype) * value, dtype)
    _store_row(y, out, scales, row, width, j, inside, dtype, FP8, INTERPRETED)


@triton.jit
def attended_kernel(
    x,
    owed,
    out,
    scales,
    width,
    OWED: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One row [H*HEAD] of what attention gave, as E4M3: plus what v is owed, [H, 3, HEAD] of the projection's bias; NaN
    becomes 0."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    inside = j < width
    dtype: tl.constexpr = x.dtype.element_ty
    y = tl.load(x + row * width + j, mask=inside, other=0.0).to(tl.float32)
    y = _plus(y, owed, (3 * (j // HEAD) + 2) * HEAD + j % HEAD, inside, dtype, OWED)
    y = tl.where(y == y, y, 0.0)
    _store_row(y, out, scales, row, width, j, inside, dtype, True, INTERPRETED)
