"""The floor of a lane: its own kernels, each measured alone, summed up to a forward.

    floor = blocks * (norm + modulation, QKV, norm + RoPE, attention, output projection, gated residual,
                      norm + modulation, fc1, SwiGLU, fc2, gated residual) + embedding + heads

Each is called as the block calls it, on what the call before it gave, so that a linear that rounds its input or an
attention that quantises has that in its time; each is repeated without a pause, so that it runs at the clock that its
own power leaves it (`step_times.sustained`). What a forward takes beyond that is launches, gaps and copies. Fed by
`step` with a lane that was timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import torch

from benchmarks.step_lanes import SIGMA, STEP, Ready
from benchmarks.step_times import sustained
from h3runtime.backends.attention.base import attend_at
from h3runtime.backends.linear.fp8 import reads_codes
from h3runtime.denoiser.blocks import Block
from h3runtime.denoiser.config import BLOCK_VECTORS
from h3runtime.denoiser.dit import Passage

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Part:
    """count: of a forward. ms: median of one."""

    name: str
    count: int
    ms: float
    least_ms: float
    most_ms: float


@torch.no_grad()
def parts_of(lane: Ready, device: torch.device) -> list[Part]:
    """Milliseconds of everything that a forward is made of, in its order."""
    network, given = lane.network, lane.given
    begin = partial(network.begin, lane.prepared, given.video, given.audio, SIGMA, step=STEP)
    way = begin()
    found = [_part("embedding", 1, begin, device)]
    found += _block_parts(cast(Block, network.blocks[0]), way, len(network.blocks), device)
    return [*found, _part("heads", 1, partial(network.finish, lane.prepared, way, given.video, SIGMA), device)]


def floor_ms(parts: list[Part]) -> float:
    return sum(part.count * part.ms for part in parts)


def _block_parts(block: Block, way: Passage, blocks: int, device: torch.device) -> list[Part]:
    """`Block.forward` taken apart: each call is timed, and its result is what the next one reads."""
    attn, mlp, made, call, rows = block.attn, block.mlp, way.call.producers, way.call, way.time.rows
    shift1, scale1, gate1, shift2, scale2, gate2 = way.tables.block(0).chunk(BLOCK_VECTORS, dim=-1)
    found: list[Part] = []

    def timed(name: str, work: Call, before: Call = lambda: None) -> Any:
        found.append(_part(name, blocks, work, device, before))
        before()
        return work()

    def modulated(norm: Any, shift: torch.Tensor, scale: torch.Tensor, *, codes: bool) -> Any:
        return made.norm_modulate(way.h, norm.held, shift, scale, rows, codes=codes)

    codes = made.gives_codes and reads_codes(attn.qkv_proj) and not attn.gated
    x = timed("norm + modulation", partial(modulated, block.norm1, shift1, scale1, codes=codes))
    qkv = timed("QKV", partial(attn.qkv_proj, x)).unflatten(-1, (3, attn.heads, attn.head_dim))
    # Both producers that overwrite what they read are given the same numbers at every call.
    kept = qkv.clone()
    turned = partial(made.norm_rotate_, qkv, attn.q_norm.held, attn.k_norm.held, call.rotary)
    timed("norm + RoPE of q, k", turned, partial(qkv.copy_, kept))
    q, k, v = qkv.unsqueeze(0).unbind(2)
    attend = partial(attend_at, call.backend, q, k, v, layout=call.layout, step=call.step, place=None)
    attended = timed("attention", attend)
    update = timed("output projection", partial(attn.out_proj, attended[0].flatten(1)))
    h = way.h.clone()
    timed("gated residual", partial(made.add_gated_, h, update, gate1, rows))
    codes = made.gives_codes and mlp.chunks == 1 and reads_codes(mlp.fc1)
    x = timed("norm + modulation", partial(modulated, block.norm2, shift2, scale2, codes=codes))
    wide = timed("fc1", partial(mlp.fc1, x))
    kept = wide.clone()
    codes = made.gives_codes and reads_codes(mlp.fc2)
    active = timed("SwiGLU", partial(made.swiglu, wide, codes=codes), partial(wide.copy_, kept))
    del kept
    update = timed("fc2", partial(mlp.fc2, active))
    timed("gated residual", partial(made.add_gated_, h, update, gate2, rows))
    return found


def _part(name: str, count: int, call: Call, device: torch.device, before: Call = lambda: None) -> Part:
    times = sustained(call, device, before)
    return Part(name, count, median(times), min(times), max(times))
