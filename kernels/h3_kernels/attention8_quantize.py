# mypy: ignore-errors
"""Device code that makes 8-bit codes and scales of q, k and v for `attention8`.

    statistics   k, v [B, S, H, D] -> of every CHUNK rows: sum of k, sum, least and largest of v     one pass over both
    settle       -> the means of k and of v over S, and a scale for each channel of v
    q, k, v      -> codes, scales                                                                    one pass over each
    centre       -> the mean of v less that of its codes

Rows are padded to whole tiles and have the code 0 there, so no load of the attention is masked. Heads are the fastest
index of every grid: neighbours in memory, read at about the same time.

Keys of v lie in another order within each 16: place 4t + 2g + j holds key 8g + 2t + j (t < 4; g, j < 2). A thread of a
tensor core's result holds columns 2t, 2t + 1, 2t + 8 and 2t + 9 of P; as the 8-bit left operand of the next product it
must hold four neighbours. A product's sum may be taken in any order, so v follows P and no value changes its thread.
"""

import triton
import triton.language as tl

from h3_kernels.rounding import to_e4m3

SMALLEST_SCALE = tl.constexpr(1e-30)
PER_INT8 = tl.constexpr(1.0 / 127.0)
PER_E4M3 = tl.constexpr(1.0 / 448.0)
LARGEST = tl.constexpr(3e38)
# 1.5 * 2^23: added to a float below 2^22 it leaves the nearest integer in the low bits, ties to even.
ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def _head(x, which, heads, batch_stride, head_stride):
    """Where head `which` of B*H begins in x [B, S, H, D]."""
    return x + (which // heads).to(tl.int64) * batch_stride + (which % heads).to(tl.int64) * head_stride


@triton.jit
def _rows(x, at, row_stride, rows, D: tl.constexpr):
    """fp32 [BLOCK, D] of rows `at`, 0 below row S."""
    place = at.to(tl.int64)[:, None] * row_stride + tl.arange(0, D)[None, :]
    return tl.load(x + place, mask=(at < rows)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _int8(x, scale):
    """x / scale rounded, scale > 0 broadcast to x."""
    return (x * tl.div_rn(1.0, scale) + ROUNDER).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit(do_not_specialize=["rows", "heads"])
def statistics_kernel(
    k,
    v,
    out,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    rows,
    heads,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    D: tl.constexpr,
):
    """Program (B*H, chunk): out fp32 [B*H, chunks, 4, D]. One reduction, at the end."""
    which = tl.program_id(0)
    k, v = _head(k, which, heads, k_batch, k_head), _head(v, which, heads, v_batch, v_head)
    k_sum = tl.zeros([BLOCK, D], tl.float32)
    v_sum = tl.zeros([BLOCK, D], tl.float32)
    least = tl.full([BLOCK, D], LARGEST, tl.float32)
    largest = tl.full([BLOCK, D], -LARGEST, tl.float32)
    for start in tl.range(0, CHUNK, BLOCK, num_stages=STAGES):
        at = tl.program_id(1) * CHUNK + start + tl.arange(0, BLOCK)
        # A row beyond the last is read as the last: it moves no extreme.
        x = _rows(v, tl.minimum(at, rows - 1), v_row, rows, D)
        k_sum += _rows(k, at, k_row, rows, D)
        v_sum += tl.where((at < rows)[:, None], x, 0.0)
        least = tl.minimum(least, x)
        largest = tl.maximum(largest, x)
    place = out + (which * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * 4 * D + tl.arange(0, D)
    tl.store(place, tl.sum(k_sum, 0))
    tl.store(place + D, tl.sum(v_sum, 0))
    tl.store(place + 2 * D, tl.min(least, 0))
    tl.store(place + 3 * D, tl.max(largest, 0))


@triton.jit
def _piece(found, at, chunks, which: tl.constexpr, D: tl.constexpr, PIECES: tl.constexpr):
    """[BLOCK, D] of what the chunks `at` found, one beyond the last as the last."""
    place = (tl.program_id(0) * chunks + tl.minimum(at, chunks - 1)).to(tl.int64)[:, None] * PIECES * D
    return tl.load(found + place + (which * D + tl.arange(0, D))[None, :])


@triton.jit(do_not_specialize=["rows", "chunks"])
def settle_kernel(found, k_mean, v_mean, v_scales, rows, chunks, BLOCK: tl.constexpr, D: tl.constexpr):
    """Program (B*H): from `statistics_kernel`'s rows to fp32 [B*H, D] each."""
    k_sum = tl.zeros([D], tl.float32)
    v_sum = tl.zeros([D], tl.float32)
    least = tl.full([D], LARGEST, tl.float32)
    largest = tl.full([D], -LARGEST, tl.float32)
    for start in range(0, chunks, BLOCK):
        at = start + tl.arange(0, BLOCK)
        real = (at < chunks)[:, None]
        k_sum += tl.sum(tl.where(real, _piece(found, at, chunks, 0, D, 4), 0.0), 0)
        v_sum += tl.sum(tl.where(real, _piece(found, at, chunks, 1, D, 4), 0.0), 0)
        least = tl.minimum(least, tl.min(_piece(found, at, chunks, 2, D, 4), 0))
        largest = tl.maximum(largest, tl.max(_piece(found, at, chunks, 3, D, 4), 0))
    d = tl.arange(0, D)
    count = rows * 1.0
    mean = tl.div_rn(v_sum, count)
    reach = tl.maximum(largest - mean, mean - least)
    tl.store(k_mean + tl.program_id(0) * D + d, tl.div_rn(k_sum, count))
    tl.store(v_mean + tl.program_id(0) * D + d, mean)
    tl.store(v_scales + tl.program_id(0) * D + d, tl.maximum(reach * PER_E4M3, SMALLEST_SCALE))


@triton.jit(do_not_specialize=["rows", "heads"])
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
    BLOCK: tl.constexpr,
    D: tl.constexpr,
):
    """Program (B*H, block): INT8, a scale for each row with the softmax's own and log2(e) multiplied in."""
    which = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = _rows(_head(q, which, heads, batch_stride, head_stride), at, row_stride, rows, D)
    scale = tl.maximum(tl.max(tl.abs(x), 1) * PER_INT8, SMALLEST_SCALE)
    place = which.to(tl.int64) * padded + at
    tl.store(codes + place[:, None] * D + tl.arange(0, D)[None, :], _int8(x, scale[:, None]))
    tl.store(scales + place, scale * softmax_scale)


@triton.jit(do_not_specialize=["rows", "heads", "blocks"])
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
    blocks,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
):
    """Program (B*H, block): less the mean of all keys, which moves no softmax; INT8, one scale for each block."""
    which = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    x = _rows(_head(k, which, heads, batch_stride, head_stride), at, row_stride, rows, D)
    x = tl.where((at < rows)[:, None], x - tl.load(mean + which * D + d)[None, :], 0.0)
    scale = tl.maximum(tl.max(tl.max(tl.abs(x), 1), 0) * PER_INT8, SMALLEST_SCALE)
    place = which.to(tl.int64) * padded + at
    tl.store(codes + place[:, None] * D + d[None, :], _int8(x, scale))
    # Whole tiles of queries may end after the last block of keys that holds any.
    tl.store(scales + which * blocks + tl.program_id(1), scale, mask=tl.program_id(1) < blocks)


@triton.jit(do_not_specialize=["rows", "heads"])
def quantize_v_kernel(
    v,
    mean,
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
    """Program (B*H, block): less the channel's mean, E4M3 by a scale per channel, turned to [D, padded] since 8-bit
    operands are multiplied along contiguous rows, and in the order that the module's docstring gives."""
    which = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    # Bits of a place within 16: t1 t0 g j; of its key: g t1 t0 j.
    key = (place & ~15) | ((place & 2) << 2) | ((place & 12) >> 1) | (place & 1)
    at = tl.program_id(1) * BLOCK + key
    d = tl.arange(0, D)
    x = _rows(_head(v, which, heads, batch_stride, head_stride), at, row_stride, rows, D)
    x = tl.where((at < rows)[:, None], x - tl.load(mean + which * D + d)[None, :], 0.0)
    x = x * tl.div_rn(1.0, tl.load(scales + which * D + d))[None, :]
    turned = (which.to(tl.int64) * D + d)[:, None] * padded + (tl.program_id(1) * BLOCK + place)[None, :]
    tl.store(codes + turned, tl.trans(to_e4m3(x, INTERPRETED)))


@triton.jit(do_not_specialize=["rows"])
def centre_kernel(codes, v_mean, v_scales, rows, padded, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Program (some of the B*H*D channels); v_mean in place. What rounding to E4M3 adds to all values of a channel on
    average would be in every result; over many keys it is more than all that a result has of its own."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros([CHANNELS, BLOCK], tl.float32)
    for start in range(0, padded, BLOCK):
        at = start + tl.arange(0, BLOCK)
        place = codes + channel.to(tl.int64)[:, None] * padded + at[None, :]
        total += tl.load(place, mask=(at < padded)[None, :], other=0.0).to(tl.float32)
    error = tl.div_rn(tl.sum(total, 1), rows * 1.0) * tl.load(v_scales + channel)
    tl.store(v_mean + channel, tl.load(v_mean + channel) - error)
