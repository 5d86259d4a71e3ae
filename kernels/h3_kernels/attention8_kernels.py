# mypy: ignore-errors
"""The attention of `attention8` in plain Triton, for any tile and for Triton's interpreter; `attention8_hopper` is the
same arithmetic written out for Hopper's asynchronous units, and faster.

Every buffer has its rows padded to whole blocks and zeros there, so no load of the main loop is masked. A padded key
scores exactly 0 and has a zero value: it adds a known exp2(-m) to the row's sum and nothing to its result, and is taken
off at the end. That costs no accuracy because the keys are smoothed: their scores have mean 0, so the largest is not
below a padded one, and the sum over real keys is at least as large as that many padded ones (Jensen).
"""

import triton
import triton.language as tl

from h3_kernels.rounding import rounded, to_e4m3

# 1.5 * 2^23. Its bits plus an integer below 2^22 are the bits of 1.5 * 2^23 + that integer: an INT32 sum becomes a
# float without a conversion (which would take the unit that exp2 needs), and even without the addition, since the sum
# can start there. The multiple of it that a scale leaves is taken off with the row's maximum.
ORIGIN = tl.constexpr(12582912.0)
ORIGIN_BITS = tl.constexpr(0x4B400000)
# log2 of the largest P: 2^8 is the highest power of two in E4M3, so small P keep their bits down to 2^-17.
P_SHIFT = tl.constexpr(8.0)


@triton.jit(do_not_specialize=["rows", "heads", "blocks"])
def attention8_kernel(
    q_codes,
    k_codes,
    v_codes,
    q_scales,
    k_scales,
    v_scales,
    v_mean,
    out,
    batch_stride,
    row_stride,
    head_stride,
    rows,
    heads,
    padded,
    blocks,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Program (block of queries, B*H). Descriptors: q_codes, k_codes [B*H*padded, D]; v_codes [B*H*D, padded]."""
    which = tl.program_id(1)
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    first = which * padded
    q = q_codes.load([first + tl.program_id(0) * BLOCK_M, 0])
    q_scale = tl.load(q_scales + first + at)
    high = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for block in tl.range(0, blocks):
        k = k_codes.load([first + block * BLOCK_N, 0])
        scale = q_scale * tl.load(k_scales + which * blocks + block)
        x = (tl.dot(q, k.T, out_dtype=tl.int32) + ORIGIN_BITS).to(tl.float32, bitcast=True)
        higher = tl.maximum(high, (tl.max(x, 1) - ORIGIN) * scale)
        p = tl.math.exp2(x * scale[:, None] - (scale * ORIGIN + higher - P_SHIFT)[:, None])
        fade = tl.math.exp2(high - higher)
        total = total * fade + tl.sum(p, 1)
        # The order of the keys of v: no value changes its thread (`attention8_quantize`).
        p = tl.permute(tl.reshape(p, [BLOCK_M, BLOCK_N // 16, 2, 4, 2]), [0, 1, 3, 2, 4])
        p = to_e4m3(tl.reshape(p, [BLOCK_M, BLOCK_N]), INTERPRETED)
        v = v_codes.load([which * D, block * BLOCK_N])
        # A tensor core keeps 14 bits of an FP8 sum: of a block's own it may, of a whole sequence's not.
        acc = acc * fade[:, None] + tl.dot(p, v.T)
        high = higher
    total -= (blocks * BLOCK_N - rows) * tl.math.exp2(P_SHIFT - high)
    d = which * D + tl.arange(0, D)
    result = acc * tl.div_rn(1.0, total)[:, None] * tl.load(v_scales + d)[None, :] + tl.load(v_mean + d)[None, :]
    base = out + (which // heads).to(tl.int64) * batch_stride + (which % heads).to(tl.int64) * head_stride
    place = at.to(tl.int64)[:, None] * row_stride + tl.arange(0, D)[None, :]
    result = rounded(result, out.dtype.element_ty, INTERPRETED).to(out.dtype.element_ty)
    tl.store(base + place, result, mask=(at < rows)[:, None])
