# mypy: ignore-errors
"""Device code of the fused producers; `producers` launches it and says what every argument is.

One program takes one packed row, or a piece of it. Arithmetic is fp32; a value is rounded to the row's dtype where the
definition stores it. Kernels are compiled without contraction of a product and a sum, which would skip a rounding.
A switch that turns a step off leaves the order of every sum as it was, so that a fused kernel equals its steps. To that
end a row is taken in chunks of 16 bytes a thread: of a larger one, Triton would let a thread hold twice as many
neighbours where the result is FP8, and would add in another order.
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
def _scale_of(high):
    """The scale of a row whose largest absolute values, of every lane, are `high`; by the rule of `quant.fp8`."""
    return tl.maximum(tl.div_rn(tl.max(high, 0), E4M3_MAX), SMALLEST_SCALE)


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
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A row, held in registers between its two or three turns. RESIDUAL: x becomes x + update*gate first, as
    `add_gated_kernel` makes it, and is what the norm reads. FP8: to `codes` and `scales` instead of `out`."""
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = x.dtype.element_ty
    which = row
    if MODULATE or RESIDUAL:
        which = tl.load(index + row).to(tl.int64) * table_stride
    held = ()
    squares = tl.zeros([CHUNK], tl.float32)
    for i in tl.static_range(CHUNKS):
        at = i * CHUNK + tl.arange(0, CHUNK)
        inside = at < width
        here = x + row * x_stride + at
        y = tl.load(here, mask=inside, other=0.0)
        if RESIDUAL:
            u = tl.load(update + row * update_stride + at, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(gate + which + at, mask=inside, other=0.0).to(tl.float32)
            y = rounded(tl.fma(u, g, y.to(tl.float32)), dtype, INTERPRETED).to(dtype)
            tl.store(here, y, mask=inside)
        held += (y,)
        squares += y.to(tl.float32) * y.to(tl.float32)
    r = tl.rsqrt(tl.div_rn(tl.sum(squares, 0), width.to(tl.float32)) + eps)
    made = ()
    high = tl.zeros([CHUNK], tl.float32)
    for i in tl.static_range(CHUNKS):
        at = i * CHUNK + tl.arange(0, CHUNK)
        inside = at < width
        y = held[i].to(tl.float32)
        if NORM:
            w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
            y = rounded(y * r * w, dtype, INTERPRETED)
        if MODULATE:
            s = tl.load(scale + which + at, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(shift + which + at, mask=inside, other=0.0).to(tl.float32)
            y = rounded(y * rounded(1.0 + s, dtype, INTERPRETED), dtype, INTERPRETED)
            y = rounded(y + b, dtype, INTERPRETED)
        if FP8:
            made += (y.to(dtype),)
            high = tl.maximum(high, tl.abs(y))
        else:
            tl.store(out + row * width + at, y.to(dtype), mask=inside)
    if FP8:
        own = _scale_of(high)
        tl.store(scales + row, own)
        for i in tl.static_range(CHUNKS):
            at = i * CHUNK + tl.arange(0, CHUNK)
            code = _code(made[i].to(tl.float32), own, INTERPRETED)
            tl.store(codes + row * width + at, code, mask=at < width)


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
def _swiglu(x, width, at, inside, INTERPRETED: tl.constexpr):
    """silu(gate) * value of a row that begins at x, both operations rounded, in the row's dtype."""
    dtype: tl.constexpr = x.dtype.element_ty
    gate = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + width + at, mask=inside, other=0.0).to(tl.float32)
    # CUDA's own expf and a true division, as PyTorch's silu has them: exp2 of a product would differ now and then.
    e = tl.exp(-gate) if INTERPRETED else libdevice.exp(-gate)
    y = rounded(tl.div_rn(gate, 1.0 + e), dtype, INTERPRETED)
    return rounded(y * value, dtype, INTERPRETED).to(dtype)


@triton.jit
def swiglu_kernel(x, x_stride, width, BLOCK: tl.constexpr, INTERPRETED: tl.constexpr):
    """Gate x[:, :width] is overwritten by the product."""
    here = x + tl.program_id(0).to(tl.int64) * x_stride
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    tl.store(here + at, _swiglu(here, width, at, inside, INTERPRETED), mask=inside)


@triton.jit
def swiglu_fp8_kernel(
    x,
    codes,
    scales,
    x_stride,
    width,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A row, whose product stays in registers until its largest value is known."""
    row = tl.program_id(0).to(tl.int64)
    held = ()
    high = tl.zeros([CHUNK], tl.float32)
    for i in tl.static_range(CHUNKS):
        at = i * CHUNK + tl.arange(0, CHUNK)
        y = _swiglu(x + row * x_stride, width, at, at < width, INTERPRETED)
        held += (y,)
        high = tl.maximum(high, tl.abs(y.to(tl.float32)))
    own = _scale_of(high)
    tl.store(scales + row, own)
    for i in tl.static_range(CHUNKS):
        at = i * CHUNK + tl.arange(0, CHUNK)
        code = _code(held[i].to(tl.float32), own, INTERPRETED)
        tl.store(codes + row * width + at, code, mask=at < width)


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
