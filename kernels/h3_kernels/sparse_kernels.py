# mypy: ignore-errors
"""Device code of `sparse`: means of tiles, and attention of a tile's queries over the tiles that it keeps.

Rows are found through a table int32 [N, 64], -1 where a tile has none, so tensors stay in the sequence's own order and
strided. 64-bit offsets: at S = 109,162 a row of the real qkv starts beyond 2^31 values.
"""

import triton
import triton.language as tl

from h3_kernels.rounding import rounded

TILE = tl.constexpr(64)


@triton.jit
def mean_kernel(
    x, rows, sizes, means, batch_stride, row_stride, head_stride, heads, tiles, D: tl.constexpr, WIDTH: tl.constexpr
):
    """Program (tile, B*H): fp32 means [B*H, N, D] of a tile's rows of x [B, S, H, D]. WIDTH: a power of 2 >= D."""
    tile = tl.program_id(0)
    group = tl.program_id(1)
    at = tl.load(rows + tile * TILE + tl.arange(0, TILE))
    d = tl.arange(0, WIDTH)
    base = x + (group // heads).to(tl.int64) * batch_stride + (group % heads).to(tl.int64) * head_stride
    place = at.to(tl.int64)[:, None] * row_stride + d[None, :]
    values = tl.load(base + place, mask=(at >= 0)[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / tl.load(sizes + tile)
    tl.store(means + (group.to(tl.int64) * tiles + tile) * D + d, mean, mask=d < D)


@triton.jit
def _product(a, b, acc, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """acc + a b in fp32. The interpreter multiplies the bits of BF16, not their values, so it gets both in fp32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=PRECISION)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def attention_kernel(
    q,
    k,
    v,
    out,
    rows,
    kept,
    q_batch,
    q_row,
    q_head,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    out_batch,
    out_row,
    out_head,
    heads,
    first,
    tiles,
    count,
    scale,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Program (n, B*H): the queries of tile first + n over the `count` tiles kept[B*H, n], KEYS / 64 of them a turn.

    scale: log2(e)/sqrt(D). No tile is empty, so the first turn has a key that counts and no maximum stays -inf.
    """
    query = tl.program_id(0)
    group = tl.program_id(1)
    batch = (group // heads).to(tl.int64)
    head = (group % heads).to(tl.int64)
    d = tl.arange(0, WIDTH)
    wide = d < D
    at = tl.load(rows + (first + query) * TILE + tl.arange(0, TILE))
    place = batch * q_batch + head * q_head + at.to(tl.int64)[:, None] * q_row + d[None, :]
    queries = tl.load(q + place, mask=(at >= 0)[:, None] & wide[None, :], other=0.0)
    keys = k + batch * k_batch + head * k_head
    values = v + batch * v_batch + head * v_head
    picks = kept + (group.to(tl.int64) * tiles + query) * count
    lane = tl.arange(0, KEYS)
    high = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    acc = tl.zeros([TILE, WIDTH], tl.float32)
    for turn in tl.range(0, tl.cdiv(count * TILE, KEYS), num_stages=STAGES):
        nth = turn * (KEYS // TILE) + lane // TILE
        tile = tl.load(picks + nth, mask=nth < count, other=0)
        row = tl.load(rows + tile * TILE + lane % TILE, mask=nth < count, other=-1)
        read = row >= 0
        key = tl.load(
            keys + row.to(tl.int64)[:, None] * k_row + d[None, :], mask=read[:, None] & wide[None, :], other=0.0
        )
        x = _product(queries, tl.trans(key), tl.zeros([TILE, KEYS], tl.float32), PRECISION, INTERPRETED) * scale
        x = tl.where(read[None, :], x, float("-inf"))
        higher = tl.maximum(high, tl.max(x, 1))
        p = tl.math.exp2(x - higher[:, None])
        fade = tl.math.exp2(high - higher)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        value = tl.load(
            values + row.to(tl.int64)[:, None] * v_row + d[None, :], mask=read[:, None] & wide[None, :], other=0.0
        )
        p = rounded(p, v.dtype.element_ty, INTERPRETED).to(v.dtype.element_ty)
        acc = _product(p, value, acc, PRECISION, INTERPRETED)
        high = higher
    result = rounded(acc / total[:, None], out.dtype.element_ty, INTERPRETED).to(out.dtype.element_ty)
    place = batch * out_batch + head * out_head + at.to(tl.int64)[:, None] * out_row + d[None, :]
    tl.store(out + place, result, mask=(at >= 0)[:, None] & wide[None, :])
