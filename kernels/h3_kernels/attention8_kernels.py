# mypy: ignore-errors
"""Device code of `attention8`: three quantisers and the attention itself.

Every buffer has its rows padded to whole blocks and zeros there, so no load of the main loop is masked. A padded key
scores exactly 0 and has a zero value: it adds a known exp2(-m) to the row's sum and nothing to its result, and is taken
off at the end. That costs no accuracy because the keys are smoothed: their scores have mean 0, so the largest is not
below a padded one, and the sum over real keys is at least as large as that many padded ones (Jensen).
"""

import triton
import triton.language as tl

from h3_kernels.rounding import rounded, to_e4m3

SMALLEST_SCALE = tl.constexpr(1e-30)
INT8_MAX = tl.constexpr(127.0)
E4M3_MAX = tl.constexpr(448.0)
# 1.5 * 2^23: added and taken off again, it leaves an integer, rounded to nearest even.
ROUNDER = tl.constexpr(12582912.0)
ROUNDER_BITS = tl.constexpr(0x4B400000)
# log2 of the largest P: 2^8 is the highest power of two in E4M3, so small P keep their bits down to 2^-17.
P_SHIFT = tl.constexpr(8.0)


@triton.jit
def _codes(x, scale, INT8: tl.constexpr, INTERPRETED: tl.constexpr):
    """x / scale in 8 bits, scale > 0 broadcast to x."""
    y = tl.div_rn(x, scale)
    if INT8:
        return ((y + ROUNDER) - ROUNDER).to(tl.int8)
    else:  # noqa: RET505  # a return behind a constant condition would be compiled with this one's type
        return to_e4m3(tl.minimum(tl.maximum(y, -E4M3_MAX), E4M3_MAX), INTERPRETED)


@triton.jit
def _tile(x, batch_stride, row_stride, head_stride, rows, heads, BLOCK: tl.constexpr, D: tl.constexpr):
    """fp32 [BLOCK, D] of x [B, S, H, D] at program (block, B*H), zero below row S; and the rows' numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    base = x + batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride
    place = at.to(tl.int64)[:, None] * row_stride + tl.arange(0, D)[None, :]
    return tl.load(base + place, mask=(at < rows)[:, None], other=0.0).to(tl.float32), at


@triton.jit
def quantize_q_kernel(
    q,
    codes,
    scales,
    batch_stride,
    row_stride,
    head_stride,
    rows,
    heads,
    padded,
    softmax_scale,
    INT8: tl.constexpr,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A scale for each row, with the softmax's own and log2(e) multiplied in."""
    x, at = _tile(q, batch_stride, row_stride, head_stride, rows, heads, BLOCK, D)
    limit = INT8_MAX if INT8 else E4M3_MAX
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(x), 1), limit), SMALLEST_SCALE)
    first = tl.program_id(1).to(tl.int64) * padded
    place = (first + at)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(codes + place, _codes(x, scale[:, None], INT8, INTERPRETED))
    tl.store(scales + first + at, scale * softmax_scale)


@triton.jit
def quantize_k_kernel(
    k,
    mean,
    codes,
    scales,
    batch_stride,
    row_stride,
    head_stride,
    rows,
    heads,
    padded,
    INT8: tl.constexpr,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Less the mean of all keys, which moves no softmax; one scale for each block."""
    x, at = _tile(k, batch_stride, row_stride, head_stride, rows, heads, BLOCK, D)
    centre = tl.load(mean + tl.program_id(1) * D + tl.arange(0, D))
    x = tl.where((at < rows)[:, None], x - centre[None, :], 0.0)
    limit = INT8_MAX if INT8 else E4M3_MAX
    scale = tl.maximum(tl.div_rn(tl.max(tl.max(tl.abs(x), 1), 0), limit), SMALLEST_SCALE)
    place = (tl.program_id(1).to(tl.int64) * padded + at)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(codes + place, _codes(x, scale, INT8, INTERPRETED))
    tl.store(scales + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), scale)


@triton.jit
def quantize_v_kernel(
    v,
    scales,
    codes,
    batch_stride,
    row_stride,
    head_stride,
    rows,
    heads,
    padded,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """E4M3 by a scale per channel, turned to [D, padded]: Hopper multiplies 8-bit operands along contiguous rows."""
    x, at = _tile(v, batch_stride, row_stride, head_stride, rows, heads, BLOCK, D)
    d = tl.arange(0, D)
    scale = tl.load(scales + tl.program_id(1) * D + d)
    turned = tl.trans(_codes(x, scale[None, :], False, INTERPRETED))
    place = (tl.program_id(1).to(tl.int64) * D + d)[:, None] * padded + at[None, :]
    tl.store(codes + place, turned)


@triton.jit
def attention8_kernel(
    q_codes,
    k_codes,
    v_codes,
    q_scales,
    k_scales,
    v_scales,
    out,
    batch_stride,
    row_stride,
    head_stride,
    rows,
    heads,
    padded,
    blocks,
    INT8: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    STAGES: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Program (block of queries, B*H). Descriptors: q_codes, k_codes [B*H*padded, D]; v_codes [B*H*D, padded]; q_scales
    [B*H*padded], since Triton 3.6 can't share a vector loaded through pointers between the warps that it specialises.
    """
    which = tl.program_id(1)
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    first = which * padded
    q = q_codes.load([first + tl.program_id(0) * BLOCK_M, 0])
    q_scale = q_scales.load([first + tl.program_id(0) * BLOCK_M])
    high = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for block in tl.range(0, blocks, num_stages=STAGES, warp_specialize=SPECIALIZE):
        k = k_codes.load([first + block * BLOCK_N, 0])
        scale = q_scale * tl.load(k_scales + which * blocks + block)
        if INT8:
            # A conversion would take the unit that exp2 needs. Below 2^22 an addition to the bits of 1.5 * 2^23 is one.
            x = (tl.dot(q, k.T, out_dtype=tl.int32) + ROUNDER_BITS).to(tl.float32, bitcast=True) - ROUNDER
        else:
            x = tl.dot(q, k.T)
        higher = tl.maximum(high, tl.max(x, 1) * scale)
        p = tl.math.exp2(x * scale[:, None] - (higher - P_SHIFT)[:, None])
        fade = tl.math.exp2(high - higher)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        v = v_codes.load([which * D, block * BLOCK_N])
        acc = tl.dot(to_e4m3(p, INTERPRETED), v.T, acc)
        high = higher
    total -= (blocks * BLOCK_N - rows).to(tl.float32) * tl.math.exp2(P_SHIFT - high)
    d = tl.arange(0, D)
    v_scale = tl.load(v_scales + which * D + d)
    result = acc * tl.div_rn(1.0, total)[:, None] * v_scale[None, :]
    base = out + (which // heads).to(tl.int64) * batch_stride + (which % heads).to(tl.int64) * head_stride
    place = at.to(tl.int64)[:, None] * row_stride + d[None, :]
    result = rounded(result, out.dtype.element_ty, INTERPRETED).to(out.dtype.element_ty)
    tl.store(base + place, result, mask=(at < rows)[:, None])
