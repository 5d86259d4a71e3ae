# mypy: ignore-errors
"""Device code of the fused producers; `producers` launches it and says what every argument is.

One program takes one packed row, or a piece of it. Arithmetic is fp32; a value is rounded to the row's dtype where the
definition stores it. Kernels are compiled without contraction of a product and a sum, which would skip a rounding.
A switch that turns a step off leaves the order of every sum as it was, so that a fused kernel equals its steps.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from h3_kernels.rounding import rounded, to_e4m3

E4M3_MAX = tl.constexpr(448.0)
SMALLEST_SCALE = tl.constexpr(1e-30)


@triton.jit
def _code(y, scale, INTERPRETED: tl.constexpr):
    """E4M3 of y / scale, saturated, by the rule of `quant.fp8.codes_of`."""
    y = y * tl.div_rn(1.0, scale)
    return to_e4m3(tl.minimum(tl.maximum(y, -E4M3_MAX), E4M3_MAX), INTERPRETED)


@triton.jit
def quantize_kernel(x, codes, scale, x_stride, width, BLOCK: tl.constexpr, INTERPRETED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    y = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(codes + row * width + at, _code(y, tl.load(scale), INTERPRETED), mask=inside)


@triton.jit
def _store_row(y, out, codes, scales, row, at, inside, width, FP8: tl.constexpr, INTERPRETED: tl.constexpr):
    """y, rounded already, as it is; or as E4M3 codes and the row's scale, by the rule of `quant.fp8`."""
    if FP8:
        amax = tl.max(tl.abs(y), 0)
        scale = tl.maximum(tl.div_rn(amax, E4M3_MAX), SMALLEST_SCALE)
        tl.store(codes + row * width + at, _code(y, scale, INTERPRETED), mask=inside)
        tl.store(scales + row, scale)
    else:
        tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_modulate_kernel(
    x,
    out,
    codes,
    scales,
    weight,
    shift,
    scale,
    index,
    update,
    gate,
    x_stride,
    update_stride,
    table_stride,
    width,
    eps,
    NORM: tl.constexpr,
    MODULATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """RESIDUAL: x becomes x + update*gate first, as `add_gated_kernel` makes it, and is what the norm reads."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    dtype: tl.constexpr = x.dtype.element_ty
    here = x + row * x_stride + at
    y = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        u = tl.load(update + row * update_stride + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gate + tl.load(index + row).to(tl.int64) * table_stride + at, mask=inside, other=0.0)
        y = rounded(tl.fma(u, g.to(tl.float32), y), dtype, INTERPRETED)
        tl.store(here, y.to(dtype), mask=inside)
    if NORM:
        mean = tl.div_rn(tl.sum(y * y, 0), width.to(tl.float32))
        w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        y = rounded(y * tl.rsqrt(mean + eps) * w, dtype, INTERPRETED)
    if MODULATE:
        which = tl.load(index + row).to(tl.int64) * table_stride
        s = tl.load(scale + which + at, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(shift + which + at, mask=inside, other=0.0).to(tl.float32)
        y = rounded(y * rounded(1.0 + s, dtype, INTERPRETED), dtype, INTERPRETED)
        y = rounded(y + b, dtype, INTERPRETED)
    _store_row(y, out + row * width, codes, scales, row, at, inside, width, FP8, INTERPRETED)


@triton.jit
def _load_heads(x, columns, rows, inside):
    return tl.load(x + rows + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def norm_rotate_kernel(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    row_stride,
    part_stride,
    head_stride,
    heads,
    eps,
    HALF: tl.constexpr,
    TAIL: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """All heads of q (program (row, 0)) or k (program (row, 1)) of one row, in place.

    The two halves that turn, and the tail that doesn't, are tiles of their own, so nothing is read twice.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    dtype: tl.constexpr = qkv.dtype.element_ty
    x = qkv + row * row_stride + part * part_stride
    head = tl.arange(0, HEADS)[:, None]
    rows = head * head_stride
    j = tl.arange(0, HALF_BLOCK)[None, :]
    in_half = (head < heads) & (j < HALF)
    first = _load_heads(x, j, rows, in_half)
    second = _load_heads(x, HALF + j, rows, in_half)
    t = tl.arange(0, TAIL_BLOCK)[None, :]
    in_tail = (head < heads) & (t < TAIL)
    if TAIL > 0:
        tail = _load_heads(x, 2 * HALF + t, rows, in_tail)
    # Small tiles are held by several threads at once: none may write before all have read.
    tl.debug_barrier()
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if TAIL > 0:
            squares += tl.sum(tail * tail, 1)
        r = tl.rsqrt(tl.div_rn(squares, 2.0 * HALF + TAIL) + eps)[:, None]
        weight = q_weight
        if part == 1:
            weight = k_weight
        w = tl.load(weight + j, mask=j < HALF, other=0.0).to(tl.float32)
        first = rounded(first * r * w, dtype, INTERPRETED)
        w = tl.load(weight + HALF + j, mask=j < HALF, other=0.0).to(tl.float32)
        second = rounded(second * r * w, dtype, INTERPRETED)
        if TAIL > 0:
            w = tl.load(weight + 2 * HALF + t, mask=t < TAIL, other=0.0).to(tl.float32)
            tail = rounded(tail * r * w, dtype, INTERPRETED)
            tl.store(x + rows + 2 * HALF + t, tail.to(dtype), mask=in_tail)
    if ROTATE:
        c = tl.load(cos + row * HALF + j, mask=j < HALF, other=0.0).to(tl.float32)
        s = tl.load(sin + row * HALF + j, mask=j < HALF, other=0.0).to(tl.float32)
        a = rounded(first * c, dtype, INTERPRETED) - rounded(second * s, dtype, INTERPRETED)
        b = rounded(second * c, dtype, INTERPRETED) + rounded(first * s, dtype, INTERPRETED)
        first = rounded(a, dtype, INTERPRETED)
        second = rounded(b, dtype, INTERPRETED)
    tl.store(x + rows + j, first.to(dtype), mask=in_half)
    tl.store(x + rows + HALF + j, second.to(dtype), mask=in_half)


@triton.jit
def swiglu_kernel(
    x,
    codes,
    scales,
    x_stride,
    width,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Gate x[:, :width] is overwritten by the product unless it goes to `codes`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    dtype: tl.constexpr = x.dtype.element_ty
    gate = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_stride + width + at, mask=inside, other=0.0).to(tl.float32)
    # CUDA's own expf and a true division, as PyTorch's silu has them: exp2 of a product would differ now and then.
    e = tl.exp(-gate) if INTERPRETED else libdevice.exp(-gate)
    y = rounded(tl.div_rn(gate, 1.0 + e), dtype, INTERPRETED)
    y = rounded(y * value, dtype, INTERPRETED)
    _store_row(y, x + row * x_stride, codes, scales, row, at, inside, width, FP8, INTERPRETED)


@triton.jit
def add_gated_kernel(
    x,
    update,
    gate,
    index,
    x_stride,
    update_stride,
    table_stride,
    width,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    which = tl.load(index + row).to(tl.int64) * table_stride
    g = tl.load(gate + which + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(update + row * update_stride + at, mask=inside, other=0.0).to(tl.float32)
    here = x + row * x_stride + at
    # In bf16 the product is exact, so this is one rounding either way; in fp32 PyTorch contracts it too.
    y = tl.fma(u, g, tl.load(here, mask=inside, other=0.0).to(tl.float32))
    tl.store(here, rounded(y, x.dtype.element_ty, INTERPRETED).to(x.dtype.element_ty), mask=inside)
