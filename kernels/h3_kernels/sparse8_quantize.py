# mypy: ignore-errors
"""Device code that makes `sparse8`'s 8-bit codes and scales, rows in the order of the places that hold them.

    statistics   k, v [B, S, H, D] -> of every CHUNK rows: sums, least and largest      one pass over both
    settle       -> the means of k and of v over S, a scale for each head of k and for each channel of v
    q            -> codes, a scale a row; means by tiles                                one pass over q
    keys         k, v -> codes; the mean of k and the sum of v's codes by tiles         one pass over both

As `attention8_quantize`, whose arithmetic this is, but for k's scale: any tiles meet in a turn of the attention, and
with one scale a head they need no care. H3 normalises its keys, so that their rows are alike: on six calls of h3-nano,
9,308 rows, dense attention is 1.11 % off with it, and with one for each 256 keys. Places beyond S hold the code 0.
"""

import triton
import triton.language as tl

from h3_kernels.attention8_quantize import _head, _piece, _rows
from h3_kernels.rounding import to_e4m3

# Of q and of k: even two of these times 3e38 is more than exp2 tells from 0, so a masked key is masked in any case.
SMALLEST_SCALE = tl.constexpr(1e-15)
SMALLEST_V_SCALE = tl.constexpr(1e-30)
PER_INT8 = tl.constexpr(1.0 / 127.0)
PER_E4M3 = tl.constexpr(1.0 / 448.0)
LARGEST = tl.constexpr(3e38)
ROUNDER = tl.constexpr(12582912.0)
PIECES = tl.constexpr(6)
TILE = tl.constexpr(64)


@triton.jit
def _int8(x, reciprocal):
    return (x * reciprocal + ROUNDER).to(tl.int32, bitcast=True).to(tl.int8)


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
    """Program (B*H, chunk): out fp32 [B*H, chunks, 6, D]: sum, least and largest of k, then of v."""
    which = tl.program_id(0)
    k, v = _head(k, which, heads, k_batch, k_head), _head(v, which, heads, v_batch, v_head)
    k_sum = tl.zeros([BLOCK, D], tl.float32)
    v_sum = tl.zeros([BLOCK, D], tl.float32)
    k_least = tl.full([BLOCK, D], LARGEST, tl.float32)
    v_least = tl.full([BLOCK, D], LARGEST, tl.float32)
    k_largest = tl.full([BLOCK, D], -LARGEST, tl.float32)
    v_largest = tl.full([BLOCK, D], -LARGEST, tl.float32)
    for start in tl.range(0, CHUNK, BLOCK, num_stages=STAGES):
        at = tl.program_id(1) * CHUNK + start + tl.arange(0, BLOCK)
        # A row beyond the last is read as the last: it moves no extreme.
        real = (at < rows)[:, None]
        key = _rows(k, tl.minimum(at, rows - 1), k_row, rows, D)
        value = _rows(v, tl.minimum(at, rows - 1), v_row, rows, D)
        k_sum += tl.where(real, key, 0.0)
        v_sum += tl.where(real, value, 0.0)
        k_least, k_largest = tl.minimum(k_least, key), tl.maximum(k_largest, key)
        v_least, v_largest = tl.minimum(v_least, value), tl.maximum(v_largest, value)
    place = out + (which * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * PIECES * D + tl.arange(0, D)
    tl.store(place, tl.sum(k_sum, 0))
    tl.store(place + D, tl.min(k_least, 0))
    tl.store(place + 2 * D, tl.max(k_largest, 0))
    tl.store(place + 3 * D, tl.sum(v_sum, 0))
    tl.store(place + 4 * D, tl.min(v_least, 0))
    tl.store(place + 5 * D, tl.max(v_largest, 0))


@triton.jit
def _settled(found, rows, chunks, FIRST: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr):
    """[D] each: the mean of one tensor, and how far it reaches from that."""
    total = tl.zeros([D], tl.float32)
    least = tl.full([D], LARGEST, tl.float32)
    largest = tl.full([D], -LARGEST, tl.float32)
    for start in range(0, chunks, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.where((at < chunks)[:, None], _piece(found, at, chunks, FIRST, D, PIECES), 0.0), 0)
        least = tl.minimum(least, tl.min(_piece(found, at, chunks, FIRST + 1, D, PIECES), 0))
        largest = tl.maximum(largest, tl.max(_piece(found, at, chunks, FIRST + 2, D, PIECES), 0))
    mean = tl.div_rn(total, rows * 1.0)
    return mean, tl.maximum(largest - mean, mean - least)


@triton.jit(do_not_specialize=["rows", "chunks"])
def settle_kernel(found, k_mean, k_scales, v_mean, v_scales, rows, chunks, BLOCK: tl.constexpr, D: tl.constexpr):
    """Program (B*H): from `statistics_kernel`'s rows to fp32 [B*H, D] each, k_scales [B*H]."""
    place = tl.program_id(0) * D + tl.arange(0, D)
    mean, reach = _settled(found, rows, chunks, 0, BLOCK, D)
    tl.store(k_mean + place, mean)
    tl.store(k_scales + tl.program_id(0), tl.maximum(tl.max(reach, 0) * PER_INT8, SMALLEST_SCALE))
    mean, reach = _settled(found, rows, chunks, 3, BLOCK, D)
    tl.store(v_mean + place, mean)
    tl.store(v_scales + place, tl.maximum(reach * PER_E4M3, SMALLEST_V_SCALE))


@triton.jit
def _placed(x, order, place, row_stride, rows, D: tl.constexpr):
    """fp32 [BLOCK, D] of the rows that lie at the places, 0 beyond the last place."""
    row = tl.load(order + place, mask=place < rows, other=0)
    at = x + row.to(tl.int64)[:, None] * row_stride + tl.arange(0, D)[None, :]
    return tl.load(at, mask=(place < rows)[:, None], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "heads", "padded", "blocks"])
def quantize_q_kernel(
    q,
    order,
    codes,
    scales,
    means,
    batch_stride,
    row_stride,
    head_stride,
    rows,
    heads,
    padded,
    blocks,
    softmax_scale,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
):
    """Program (B*H, block of places): INT8, a scale for each row with the softmax's own and log2(e) multiplied in;
    means fp32 [B*H, 2*blocks, D] of the halves of the first `blocks`."""
    which = tl.program_id(0)
    block = tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    x = _placed(_head(q, which, heads, batch_stride, head_stride), order, place, row_stride, rows, D)
    scale = tl.maximum(tl.max(tl.abs(x), 1) * PER_INT8, SMALLEST_SCALE)
    to = which.to(tl.int64) * padded + place
    tl.store(codes + to[:, None] * D + d[None, :], _int8(x, tl.div_rn(1.0, scale)[:, None]))
    tl.store(scales + to, scale * softmax_scale)
    HALVES: tl.constexpr = BLOCK // TILE
    mean = tl.sum(tl.reshape(x, [HALVES, TILE, D]), 1) * (1.0 / TILE)
    half = (which.to(tl.int64) * blocks + block) * HALVES + tl.arange(0, HALVES)
    tl.store(means + half[:, None] * D + d[None, :], mean, mask=(block < blocks) & (d < D)[None, :])


@triton.jit(do_not_specialize=["rows", "heads", "padded", "tiles"])
def quantize_keys_kernel(
    k,
    v,
    order,
    k_mean,
    k_scales,
    v_mean,
    v_scales,
    k_codes,
    v_codes,
    k_means,
    v_sums,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    rows,
    heads,
    padded,
    tiles,
    D: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Program (B*H, tile): k less its mean, INT8; v less its channels' means, E4M3, turned to [D, 64], since 8-bit
    operands are multiplied along contiguous rows, its keys in the order that `attention8_quantize` gives. k_means fp32
    [B*H, tiles, D] of the first `tiles`, v_sums [B*H, all, D] of the codes."""
    which = tl.program_id(0)
    tile = tl.program_id(1)
    all_tiles = tl.num_programs(1)
    lane = tl.arange(0, TILE)
    d = tl.arange(0, D)
    place = tile * TILE + lane
    x = _placed(_head(k, which, heads, k_batch, k_head), order, place, k_row, rows, D)
    mean = tl.sum(x, 0) * (1.0 / TILE)
    tl.store(k_means + (which.to(tl.int64) * tiles + tile) * D + d, mean, mask=(tile < tiles) & (d < D))
    x = tl.where((place < rows)[:, None], x - tl.load(k_mean + which * D + d)[None, :], 0.0)
    to = which.to(tl.int64) * padded + place
    tl.store(k_codes + to[:, None] * D + d[None, :], _int8(x, tl.div_rn(1.0, tl.load(k_scales + which))))
    # Bits of a place within 16: t1 t0 g j; of its key: g t1 t0 j.
    place = tile * TILE + ((lane & ~15) | ((lane & 2) << 2) | ((lane & 12) >> 1) | (lane & 1))
    x = _placed(_head(v, which, heads, v_batch, v_head), order, place, v_row, rows, D)
    x = tl.where((place < rows)[:, None], x - tl.load(v_mean + which * D + d)[None, :], 0.0)
    code = to_e4m3(x * tl.div_rn(1.0, tl.load(v_scales + which * D + d))[None, :], INTERPRETED)
    block = which.to(tl.int64) * all_tiles + tile
    tl.store(v_sums + block * D + d, tl.sum(code.to(tl.float32), 0))
    tl.store(v_codes + (block * D + d)[:, None] * TILE + lane[None, :], tl.trans(code))


@triton.jit(do_not_specialize=["rows", "tiles"])
def centre_kernel(v_sums, v_mean, v_scales, rows, tiles, BLOCK: tl.constexpr, D: tl.constexpr):
    """Program (B*H): v_mean in place, less the mean of the codes: what rounding adds to all values of a channel on
    average would be in every result."""
    which = tl.program_id(0)
    d = tl.arange(0, D)
    total = tl.zeros([BLOCK, D], tl.float32)
    for start in range(0, tiles, BLOCK):
        at = start + tl.arange(0, BLOCK)
        place = v_sums + (which.to(tl.int64) * tiles + at)[:, None] * D + d[None, :]
        total += tl.load(place, mask=(at < tiles)[:, None], other=0.0)
    error = tl.div_rn(tl.sum(total, 0), rows * 1.0) * tl.load(v_scales + which * D + d)
    tl.store(v_mean + which * D + d, tl.load(v_mean + which * D + d) - error)
