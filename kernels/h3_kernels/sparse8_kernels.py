# mypy: ignore-errors
"""Device code of `sparse8`: which tiles a block of queries keeps, and its attention over them in plain Triton, which is
also what the interpreter runs. `sparse8_hopper` is the same attention written out for Hopper, and faster.

A turn is 256 keys, four tiles of a list. Only the last turn of a list may have fewer; what fills it is masked.
"""

import triton
import triton.language as tl

from h3_kernels.attention8_kernels import ORIGIN, ORIGIN_BITS, P_SHIFT
from h3_kernels.rounding import rounded, to_e4m3

TILE = tl.constexpr(64)
LARGEST = tl.constexpr(3e38)
MASKED = tl.constexpr(-3e38)
LOWEST = tl.constexpr(-2147483648)


@triton.jit
def _weight(scores, tile, tiles, scale):
    """log2 of each tile's part in a softmax over all; something below it where there is no tile."""
    x = tl.load(scores + tile, mask=tile < tiles, other=-LARGEST) * scale
    x -= tl.max(x, 0)
    return x - tl.math.log2(tl.sum(tl.math.exp2(x), 0))


@triton.jit(do_not_specialize=["tiles", "blocks", "count", "first", "last", "length"])
def keep_kernel(scores, kept, tiles, blocks, count, first, last, length, scale, WIDTH: tl.constexpr):
    """Program (block, B*H): scores fp32 [B*H, 2*blocks, tiles] of the halves of every block -> kept int32 [B*H, blocks,
    length]: the `count` tiles of the largest weight in rising order, of equal ones the first; then the exact ones,
    `first` to `last`; then the last one again. scale: the softmax's own times log2(e). WIDTH: a power of two >= tiles.

    The count-th largest weight is found bit by bit, in an integer that orders as the floats do.
    """
    at = tl.program_id(1).to(tl.int64) * blocks + tl.program_id(0)
    tile = tl.arange(0, WIDTH)
    one = _weight(scores + 2 * at * tiles, tile, tiles, scale)
    other = _weight(scores + (2 * at + 1) * tiles, tile, tiles, scale)
    # Of both together, in logarithms: what is far from the largest keeps its order.
    score = tl.maximum(one, other) + tl.math.log2(1.0 + tl.math.exp2(-tl.abs(one - other)))
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    # Positive floats order as their bits; negative ones the other way round, below all of them.
    rank = tl.where(tile < tiles, bits ^ ((bits >> 31) & 0x7FFFFFFF), LOWEST)
    least = tl.where(tl.sum((rank >= 0).to(tl.int32), 0) >= count, 0, LOWEST)
    for step in range(31):
        higher = least + (0x40000000 >> step)
        least = tl.where(tl.sum((rank >= higher).to(tl.int32), 0) >= count, higher, least)
    above = (rank > least).to(tl.int32)
    level = (rank == least).to(tl.int32)
    missing = count - tl.sum(above, 0)
    keeps = above | (level & (tl.cumsum(level, 0) <= missing).to(tl.int32))
    to = kept + at * length
    tl.store(to + tl.cumsum(keeps, 0) - 1, tile, mask=keeps > 0)
    for start in range(count, length, WIDTH):
        more = start + tile
        tl.store(to + more, tl.minimum(first + more - count, last), mask=more < length)


@triton.jit(do_not_specialize=["rows", "heads", "padded", "blocks", "exact", "groups", "length", "count"])
def attention_kernel(
    q_codes,
    k_codes,
    v_codes,
    q_scales,
    k_scales,
    v_scales,
    v_mean,
    order,
    kept,
    out,
    batch_stride,
    row_stride,
    head_stride,
    rows,
    heads,
    padded,
    blocks,
    exact,
    groups,
    length,
    count,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program a block of queries: first the `exact` ones of every B*H, which read everything and take longest; then
    the `blocks` that choose. count: keys of a kept list."""
    program = tl.program_id(0)
    dense = program < exact * groups
    program = tl.where(dense, program, program - exact * groups)
    each = tl.maximum(tl.where(dense, exact, blocks), 1)
    which = program // each
    block = program % each + tl.where(dense, blocks, 0)
    count = tl.where(dense, rows, count)
    tiles = (rows + TILE - 1) // TILE
    picks = kept + tl.where(dense, 0, which.to(tl.int64) * blocks + block) * length
    length = tl.where(dense, 0, length)
    place = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    lane = tl.arange(0, KEYS)
    first = which.to(tl.int64) * padded
    q = tl.load(q_codes + (first + place)[:, None] * D + d[None, :])
    scale = tl.load(q_scales + first + place) * tl.load(k_scales + which)
    high = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, D], tl.float32)
    for turn in tl.range(0, (count + KEYS - 1) // KEYS):
        nth = turn * (KEYS // TILE) + lane // TILE
        tile = tl.load(picks + nth, mask=nth < length, other=0)
        tile = tl.where(dense, tl.minimum(nth, tiles - 1), tile)
        key = first + tile * TILE + lane % TILE
        k = tl.load(k_codes + key[:, None] * D + d[None, :])
        x = (tl.dot(q, tl.trans(k), out_dtype=tl.int32) + ORIGIN_BITS).to(tl.float32, bitcast=True)
        x = tl.where((turn * KEYS + lane < count)[None, :], x, MASKED)
        higher = tl.maximum(high, (tl.max(x, 1) - ORIGIN) * scale)
        p = tl.math.exp2(x * scale[:, None] - (scale * ORIGIN + higher - P_SHIFT)[:, None])
        fade = tl.math.exp2(high - higher)
        total = total * fade + tl.sum(p, 1)
        # The order of the keys of v: no value changes its thread (`attention8_quantize`).
        p = tl.permute(tl.reshape(p, [BLOCK, KEYS // 16, 2, 4, 2]), [0, 1, 3, 2, 4])
        p = to_e4m3(tl.reshape(p, [BLOCK, KEYS]), INTERPRETED)
        value = ((first // TILE + tile) * D)[None, :] * TILE + (lane % TILE)[None, :] + d[:, None] * TILE
        acc = acc * fade[:, None] + tl.dot(p, tl.trans(tl.load(v_codes + value)))
        high = higher
    at = which * D + d
    result = acc * tl.div_rn(1.0, total)[:, None] * tl.load(v_scales + at)[None, :] + tl.load(v_mean + at)[None, :]
    row = tl.load(order + place, mask=place < rows, other=0).to(tl.int64)
    base = out + (which // heads).to(tl.int64) * batch_stride + (which % heads).to(tl.int64) * head_stride
    result = rounded(result, out.dtype.element_ty, INTERPRETED).to(out.dtype.element_ty)
    tl.store(base + row[:, None] * row_stride + d[None, :], result, mask=(place < rows)[:, None])
