# mypy: ignore-errors
"""The attention of `attention8` for SM 9.0, in Gluon: who does what when is written out instead of left to a compiler.

A program has 128 queries of one head and three groups of four warps:

    producer      copies blocks of 256 keys and values to shared memory, STAGES of each ahead (`Ring`)
    2 consumers   of 64 queries each, block after block: x = q k^T by the tensor cores; maximum, exp2 and sums; p v by
                  the tensor cores again

Inside a consumer nothing overlaps. The two take turns (`turns`): from its p v to the end of its next q k one has the
tensor cores, while the other is at its exponentials; without turns it takes 7 % longer. Starting products early inside
a consumer was slower: for want of registers blocks then have 128 keys, and every block costs a pass over acc. Of a
consumer's 240 registers a thread (24 for the producer) x takes 128, acc 64 and q 16; p in 8 bits takes 32 and p v 64
when x is done with.

The tensor cores keep 14 bits of an FP8 product's running sum. They add up one block alone; acc is FP32, and as it has
to be faded for every block anyway, adding to it costs nothing.

Padded keys and the folded conversion of INT32 are those of `attention8_kernels`, the order of v's keys that of
`attention8_quantize`.
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

ORIGIN = gl.constexpr(12582912.0)
ORIGIN_BITS = gl.constexpr(0x4B400000)
P_SHIFT = gl.constexpr(8.0)
D = gl.constexpr(128)
ROWS = gl.constexpr(64)
"""Queries of a consumer: what one product takes."""
KEYS = gl.constexpr(256)
CONSUMERS = gl.constexpr(2)
STAGES = gl.constexpr(2)
SUMS = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32]))
"""A product's result over the threads of a consumer, of x and of acc alike."""
PER_ROW = gl.constexpr(gl.SliceLayout(1, SUMS.value))
PER_CHANNEL = gl.constexpr(gl.SliceLayout(0, SUMS.value))
LEFT = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=SUMS.value, k_width=4))
"""An 8-bit left operand in registers."""


def attend(
    grid: tuple[int, int],
    codes: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor, ...],
    out: torch.Tensor,
    sizes: tuple[int, ...],
) -> None:
    """As `attention8_kernels.attention8_kernel` with the default tile: q, k, v codes, scales, out, and its integers."""
    shapes = ([ROWS.value, D.value], gl.int8), ([KEYS.value, D.value], gl.int8), ([D.value, KEYS.value], gl.float8e4nv)
    tiles = [
        TensorDescriptor.from_tensor(each, shape, gl.NVMMASharedLayout.get_default_for(shape, kind))
        for each, (shape, kind) in zip(codes, shapes, strict=True)
    ]
    attention8_hopper_kernel[grid](*tiles, *scales, out, *sizes, num_warps=4)


@aggregate
class Ring:
    """Tiles in shared memory, used in turn; of each, a barrier that it is full and one that all are done with it.

    The i-th use of the ring is of tile i % S, in phase i // S of its barriers.
    """

    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, tiles, full, free):
        self.tiles = tiles
        self.full = full
        self.free = free

    @gluon.jit
    def fill(self, i, source, row, column):
        S: gl.constexpr = self.tiles.shape[0]
        full = self.full.index(i % S)
        mbarrier.wait(self.free.index(i % S), ((i // S) & 1) ^ 1)
        mbarrier.expect(full, self.tiles.shape[1] * self.tiles.shape[2])
        tma.async_copy_global_to_shared(source, [row, column], full, self.tiles.index(i % S))

    @gluon.jit
    def wait(self, i):
        S: gl.constexpr = self.tiles.shape[0]
        mbarrier.wait(self.full.index(i % S), (i // S) & 1)

    @gluon.jit
    def take(self, i):
        """The tile turned: [D, KEYS] of k, [KEYS, D] of v."""
        S: gl.constexpr = self.tiles.shape[0]
        self.wait(i)
        return self.tiles.index(i % S).permute((1, 0))

    @gluon.jit
    def release(self, i):
        S: gl.constexpr = self.tiles.shape[0]
        mbarrier.arrive(self.free.index(i % S), count=1)


@gluon.jit
def _ring(source, SLOTS: gl.constexpr, USERS: gl.constexpr):
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    tiles = gl.allocate_shared_memory(source.dtype, [SLOTS] + source.block_shape, source.layout)  # noqa: RUF005  # no star
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=USERS)
    return Ring(tiles, full, free)


@gluon.jit
def _exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _softmax(sums, high, total, scale):
    """x = sums * scale -> p = exp2(x - m + 8), the new maximum m and sum, and what fades earlier sums to that m."""
    x = sums.to(gl.float32, bitcast=True)
    higher = gl.maximum(high, (gl.max(x, 1) - ORIGIN) * scale)
    fade = _exp2(high - higher)
    p = _exp2(x * scale[:, None] - (scale * ORIGIN + higher - P_SHIFT)[:, None])
    return p, higher, total * fade + gl.sum(p, 1), fade


@gluon.jit
def _left(p):
    """p as the left operand of p v: no value leaves its thread (asserted)."""
    p = p.reshape([ROWS, KEYS // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([ROWS, KEYS])
    return gl.convert_layout(p, LEFT, assert_trivial=True).to(gl.float8e4nv)


@gluon.jit
def _produce(q_codes, k_codes, v_codes, queries, keys, values, q_row, k_row, v_row, blocks):
    for consumer in gl.static_range(CONSUMERS):
        queries.fill(consumer, q_codes, q_row + consumer * ROWS, 0)
    for i in range(blocks):
        keys.fill(i, k_codes, k_row + i * KEYS, 0)
        values.fill(i, v_codes, v_row, i * KEYS)


@gluon.jit
def _consume(ME: gl.constexpr, queries, keys, values, turns, q_scales, row, shared):
    """Pointers are those of this head; q_scales that of this program's first query, which is number `row`."""
    OTHER: gl.constexpr = (ME + 1) % CONSUMERS
    k_scales, v_scales, v_mean, out, row_stride, rows, blocks = shared
    row += ME * ROWS
    q_scale = gl.load(q_scales + ME * ROWS + gl.arange(0, ROWS, layout=PER_ROW))
    high = gl.full([ROWS], -1e30, gl.float32, PER_ROW)
    total = gl.zeros([ROWS], gl.float32, PER_ROW)
    acc = gl.zeros([ROWS, D], gl.float32, SUMS)
    none = gl.zeros([ROWS, D], gl.float32, SUMS)
    origin = gl.full([ROWS, KEYS], ORIGIN_BITS, gl.int32, SUMS)
    queries.wait(ME)
    q = queries.tiles.index(ME).load(LEFT)
    mbarrier.wait(turns.index(ME), 0)
    for i in range(blocks):
        scale = q_scale * gl.load(k_scales + i)
        sums = warpgroup_mma_wait(0, deps=[warpgroup_mma(q, keys.take(i), origin, is_async=True)])
        mbarrier.arrive(turns.index(OTHER), count=1)
        keys.release(i)
        p, high, total, fade = _softmax(sums, high, total, scale)
        p = _left(p)
        v = values.take(i)
        mbarrier.wait(turns.index(ME), (i + 1) & 1)
        part = warpgroup_mma(p, v, none, use_acc=False, is_async=True)
        part = warpgroup_mma_wait(0, deps=[part])
        values.release(i)
        acc = acc * fade[:, None] + part
    mbarrier.arrive(turns.index(OTHER), count=1)
    total -= (blocks * KEYS - rows) * _exp2(P_SHIFT - high)
    d = gl.arange(0, D, layout=PER_CHANNEL)
    result = acc * (1.0 / total)[:, None] * gl.load(v_scales + d)[None, :] + gl.load(v_mean + d)[None, :]
    at = row + gl.arange(0, ROWS, layout=PER_ROW)
    place = at.to(gl.int64)[:, None] * row_stride + d[None, :]
    gl.store(out + place, result.to(out.dtype.element_ty), mask=(at < rows)[:, None])


@gluon.jit(do_not_specialize=["rows", "heads", "blocks"])
def attention8_hopper_kernel(
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
):
    which = gl.program_id(1)
    row = gl.program_id(0) * (CONSUMERS * ROWS)
    first = which * padded
    queries = _ring(q_codes, CONSUMERS, 1)
    keys = _ring(k_codes, STAGES, CONSUMERS)
    values = _ring(v_codes, STAGES, CONSUMERS)
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for consumer in gl.static_range(CONSUMERS):
        mbarrier.init(turns.index(consumer), count=1)
    mbarrier.arrive(turns.index(0), count=1)
    fence_async_shared()
    q_scales += first + row
    k_scales += which * blocks
    v_scales += which * D
    v_mean += which * D
    out += (which // heads).to(gl.int64) * batch_stride + (which % heads).to(gl.int64) * head_stride
    shared = k_scales, v_scales, v_mean, out, row_stride, rows, blocks
    gl.warp_specialize(
        [
            (_consume, (0, queries, keys, values, turns, q_scales, row, shared)),
            (_consume, (1, queries, keys, values, turns, q_scales, row, shared)),
            (_produce, (q_codes, k_codes, v_codes, queries, keys, values, first + row, first, which * D, blocks)),
        ],
        [4, 4],
        [240, 24],
    )
