# mypy: ignore-errors
"""The attention of `sparse8` for SM 9.0, in Gluon: `attention8_hopper` over lists of tiles.

The same groups of warps, turns and registers. What differs:

    keys and values  of a turn are four tiles, copied to where one block of 256 would lie in shared memory: of k 64 rows
                     each, of v 64 columns, which is what a swizzle of 64 bytes keeps together. A tile is 8 KiB in a row
    the producer     reads a turn's four numbers of tiles before it waits for room
    scale            one a row for all turns
    the last turn    has the keys beyond the list's masked
    the result       goes to the rows that lie at the places
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.core import _aggregate as aggregate

from h3_kernels.attention8_hopper import (
    CONSUMERS,
    KEYS,
    LEFT,
    ORIGIN,
    ORIGIN_BITS,
    P_SHIFT,
    PER_CHANNEL,
    PER_ROW,
    ROWS,
    STAGES,
    SUMS,
    D,
    _exp2,
    _left,
    _ring,
)

TILE = gl.constexpr(64)
TILES = gl.constexpr(4)
"""Of a turn."""
MASKED_BITS = gl.constexpr(-0x9E4E1A)
"""Those of -3e38."""


def attend(
    grid: tuple[int],
    codes: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    tensors: tuple[torch.Tensor, ...],
    sizes: tuple[int, ...],
) -> None:
    """As `sparse8_kernels.attention_kernel`: q, k, v codes, scales, order, lists, out, and its integers."""
    shapes = ([ROWS.value, D.value], gl.int8), ([TILE.value, D.value], gl.int8), ([D.value, TILE.value], gl.float8e4nv)
    tiles = [
        TensorDescriptor.from_tensor(each, shape, gl.NVMMASharedLayout.get_default_for(shape, kind))
        for each, (shape, kind) in zip(codes, shapes, strict=True)
    ]
    attention_hopper_kernel[grid](*tiles, *tensors, *sizes, num_warps=4)


@aggregate
class Ring:
    """As `attention8_hopper.Ring`, of turns of four tiles: `parts` and `whole` are the same memory."""

    parts: gl.shared_memory_descriptor
    whole: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, parts, whole, full, free):
        self.parts = parts
        self.whole = whole
        self.full = full
        self.free = free

    @gluon.jit
    def fill(self, i, source, one, two, three, four):
        """Copies the tiles that begin at these rows of `source`."""
        S: gl.constexpr = self.whole.shape[0]
        full = self.full.index(i % S)
        part = i % S * TILES
        mbarrier.wait(self.free.index(i % S), ((i // S) & 1) ^ 1)
        mbarrier.expect(full, self.whole.shape[1] * self.whole.shape[2])
        tma.async_copy_global_to_shared(source, [one, 0], full, self.parts.index(part))
        tma.async_copy_global_to_shared(source, [two, 0], full, self.parts.index(part + 1))
        tma.async_copy_global_to_shared(source, [three, 0], full, self.parts.index(part + 2))
        tma.async_copy_global_to_shared(source, [four, 0], full, self.parts.index(part + 3))

    @gluon.jit
    def take(self, i):
        """The turn's tiles turned: [D, KEYS] of k, [KEYS, D] of v."""
        S: gl.constexpr = self.whole.shape[0]
        mbarrier.wait(self.full.index(i % S), (i // S) & 1)
        return self.whole.index(i % S).permute((1, 0))

    @gluon.jit
    def release(self, i):
        S: gl.constexpr = self.whole.shape[0]
        mbarrier.arrive(self.free.index(i % S), count=1)


@gluon.jit
def _tile_ring(source, WHOLE_ROWS: gl.constexpr, WHOLE_COLUMNS: gl.constexpr):
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    parts = gl.allocate_shared_memory(source.dtype, [STAGES * TILES] + source.block_shape, source.layout)  # noqa: RUF005  # no star
    whole = parts._reinterpret(source.dtype, [STAGES, WHOLE_ROWS, WHOLE_COLUMNS], source.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=CONSUMERS)
    return Ring(parts, whole, full, free)


@gluon.jit
def _pick(at, dense, nth, last):
    """The number of a tile: of the list, or the nth of all. Then nothing is read: there may be no list at all."""
    return gl.load(at, mask=dense == 0, other=0) + min(nth, last) * dense


@gluon.jit
def _produce(q_codes, k_codes, v_codes, queries, keys, values, q_row, k_row, v_row, picks, dense, rows, count):
    """picks: the list of this program, for `count` keys; dense: 1 for all tiles in a row, 0 for the list's."""
    for consumer in gl.static_range(CONSUMERS):
        queries.fill(consumer, q_codes, q_row + consumer * ROWS, 0)
    last = (rows + TILE - 1) // TILE - 1
    for i in range((count + KEYS - 1) // KEYS):
        at = picks + i * TILES
        one = _pick(at, dense, i * TILES, last)
        two = _pick(at + 1, dense, i * TILES + 1, last)
        three = _pick(at + 2, dense, i * TILES + 2, last)
        four = _pick(at + 3, dense, i * TILES + 3, last)
        keys.fill(i, k_codes, k_row + one * TILE, k_row + two * TILE, k_row + three * TILE, k_row + four * TILE)
        values.fill(i, v_codes, v_row + one * D, v_row + two * D, v_row + three * D, v_row + four * D)


@gluon.jit
def _consume(ME: gl.constexpr, queries, keys, values, turns_taken, q_scales, place, shared):
    """Pointers are those of this head; q_scales that of this program's first query, which lies at `place`."""
    OTHER: gl.constexpr = (ME + 1) % CONSUMERS
    k_scale, v_scales, v_mean, order, out, row_stride, rows, count = shared
    place += ME * ROWS
    scale = gl.load(q_scales + ME * ROWS + gl.arange(0, ROWS, layout=PER_ROW)) * k_scale
    origin_scale = scale * ORIGIN
    high = gl.full([ROWS], -1e30, gl.float32, PER_ROW)
    total = gl.zeros([ROWS], gl.float32, PER_ROW)
    acc = gl.zeros([ROWS, D], gl.float32, SUMS)
    none = gl.zeros([ROWS, D], gl.float32, SUMS)
    origin = gl.full([ROWS, KEYS], ORIGIN_BITS, gl.int32, SUMS)
    turns = (count + KEYS - 1) // KEYS
    valid = count - (turns - 1) * KEYS
    queries.wait(ME)
    q = queries.tiles.index(ME).load(LEFT)
    mbarrier.wait(turns_taken.index(ME), 0)
    for i in range(turns):
        sums = warpgroup_mma_wait(0, deps=[warpgroup_mma(q, keys.take(i), origin, is_async=True)])
        mbarrier.arrive(turns_taken.index(OTHER), count=1)
        keys.release(i)
        if i == turns - 1:
            # By what is known before the loop: 64 flags of a thread in two registers, not 64 numbers of keys.
            key = gl.arange(0, KEYS, layout=PER_CHANNEL)
            sums = gl.where((key < valid)[None, :], sums, MASKED_BITS)
        x = sums.to(gl.float32, bitcast=True)
        higher = gl.maximum(high, (gl.max(x, 1) - ORIGIN) * scale)
        fade = _exp2(high - higher)
        p = _exp2(x * scale[:, None] - (origin_scale + higher - P_SHIFT)[:, None])
        total = total * fade + gl.sum(p, 1)
        high = higher
        p = _left(p)
        v = values.take(i)
        mbarrier.wait(turns_taken.index(ME), (i + 1) & 1)
        part = warpgroup_mma(p, v, none, use_acc=False, is_async=True)
        part = warpgroup_mma_wait(0, deps=[part])
        values.release(i)
        acc = acc * fade[:, None] + part
    mbarrier.arrive(turns_taken.index(OTHER), count=1)
    d = gl.arange(0, D, layout=PER_CHANNEL)
    result = acc * (1.0 / total)[:, None] * gl.load(v_scales + d)[None, :] + gl.load(v_mean + d)[None, :]
    at = place + gl.arange(0, ROWS, layout=PER_ROW)
    row = gl.load(order + at, mask=at < rows, other=0)
    to = row.to(gl.int64)[:, None] * row_stride + d[None, :]
    gl.store(out + to, result.to(out.dtype.element_ty), mask=(at < rows)[:, None])


@gluon.jit(do_not_specialize=["rows", "heads", "padded", "blocks", "exact", "groups", "length", "count"])
def attention_hopper_kernel(
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
):
    program = gl.program_id(0)
    dense = (program < exact * groups).to(gl.int32)
    program -= exact * groups * (1 - dense)
    each = max(exact * dense + blocks * (1 - dense), 1)
    which = program // each
    block = program % each + blocks * dense
    count = count * (1 - dense) + rows * dense
    place = block * (CONSUMERS * ROWS)
    first = which * padded
    queries = _ring(q_codes, CONSUMERS, 1)
    keys = _tile_ring(k_codes, KEYS, D)
    values = _tile_ring(v_codes, D, KEYS)
    taken = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for consumer in gl.static_range(CONSUMERS):
        mbarrier.init(taken.index(consumer), count=1)
    mbarrier.arrive(taken.index(0), count=1)
    fence_async_shared()
    picks = kept + (which.to(gl.int64) * blocks + block) * length * (1 - dense)
    q_scales += first + place
    v_scales += which * D
    v_mean += which * D
    out += (which // heads).to(gl.int64) * batch_stride + (which % heads).to(gl.int64) * head_stride
    shared = gl.load(k_scales + which), v_scales, v_mean, order, out, row_stride, rows, count
    v_row = first // TILE * D
    produced = (
        q_codes,
        k_codes,
        v_codes,
        queries,
        keys,
        values,
        first + place,
        first,
        v_row,
        picks,
        dense,
        rows,
        count,
    )
    gl.warp_specialize(
        [
            (_consume, (0, queries, keys, values, taken, q_scales, place, shared)),
            (_consume, (1, queries, keys, values, taken, q_scales, place, shared)),
            (_produce, produced),
        ],
        [4, 4],
        [240, 24],
    )
