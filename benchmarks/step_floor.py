"""The floor of a lane: its own kernels, each measured alone, summed up to a forward.

    floor = blocks * (linears, attention, every producer that a block calls) + embedding + heads

A block in the middle, where nothing is dense for being early, runs once with stand-ins that stop at every call: what it
is given is given to it again and again, without a pause, so that it runs at the clock that its own power leaves it
(`step_times.sustained`); what it overwrites is brought back ahead of each. So a linear that rounds its input and an
attention that quantises have that in their time, and a block that calls something else tomorrow is taken apart all the
same. What a forward takes beyond its floor is launches, gaps and copies. It may take less: a product alone is held at a
lower clock than among other kernels (QKV 12.9 ms on an H200, the first and cool one 11.0). Fed by `step` with a lane
that was timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Final, cast

import torch
from torch import nn

from benchmarks.step_lanes import SIGMA, STEP, Ready
from benchmarks.step_times import sustained
from h3runtime.backends.attention.around import AttentionAround
from h3runtime.backends.linear.base import BackendLinear
from h3runtime.denoiser.blocks import Block
from h3runtime.denoiser.dit import Passage

LINEARS: Final = {
    "attn.qkv_proj": "QKV",
    "attn.out_proj": "output projection",
    "mlp.fc1": "fc1",
    "mlp.fc2": "fc2",
}
PRODUCED: Final = {
    "norm": "norm",
    "norm_modulate": "norm + modulation",
    "norm_rotate_": "norm + RoPE of q, k",
    "swiglu": "SwiGLU",
    "add_gated_": "gated residual",
    "add_gated_norm_modulate": "gated residual, norm + modulation",
    "encode": "FP8 codes",
}
"""By a producer's method."""
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
    bench = _Bench(device)
    bench.time("embedding", 1, begin)
    way = begin()
    bench.take_apart(network.blocks, way)
    bench.time("heads", 1, partial(network.finish, lane.prepared, way, given.video, SIGMA))
    return bench.parts


def floor_ms(parts: Sequence[Part]) -> float:
    return sum(part.count * part.ms for part in parts)


@dataclass(slots=True)
class _Bench:
    """Parts in the order in which they were called. blocks: how often a forward makes a block's call."""

    device: torch.device
    parts: list[Part] = field(default_factory=list)
    blocks: int = 0

    def take_apart(self, blocks: nn.ModuleList, way: Passage) -> None:
        """The middle one; `way` goes through it alone."""
        self.blocks, index = len(blocks), len(blocks) // 2
        block = cast(Block, blocks[index])
        producers: Any = _Producers(way.call.producers, self)
        call = replace(
            way.call, backend=AttentionAround(way.call.backend, self.attention), producers=producers, block=index
        )
        with ExitStack() as hooks:
            for name, title in LINEARS.items():
                hooks.enter_context(self._hooked(cast(BackendLinear, block.get_submodule(name)), title))
            block(way.h, way.tables.block(index), way.time.rows, call)

    def time(self, name: str, count: int, call: Call, spent: Sequence[torch.Tensor] = ()) -> None:
        """spent: what the call may overwrite; as before when this is done."""
        kept = [tensor.clone() for tensor in spent]

        def restore() -> None:
            for tensor, own in zip(spent, kept, strict=True):
                tensor.copy_(own)

        times = sustained(call, self.device, restore)
        restore()
        self.parts.append(Part(name, count, median(times), min(times), max(times)))

    def attention(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """It never writes to what it reads."""
        self.time("attention", self.blocks, call)
        return call()

    @contextmanager
    def _hooked(self, linear: BackendLinear, title: str) -> Iterator[None]:
        def before(_: Any, given: tuple[Any, ...]) -> None:
            self.time(title, self.blocks, partial(linear.forward, *given))

        hook = linear.register_forward_pre_hook(before)
        try:
            yield
        finally:
            hook.remove()


class _Producers:
    """Producers as the block sees them; each call is timed before it is made."""

    def __init__(self, own: Any, bench: _Bench) -> None:
        self._own, self._bench = own, bench

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name)
        return partial(self._called, found, PRODUCED[name]) if name in PRODUCED else found

    def _called(self, work: Callable[..., Any], title: str, *given: Any, **named: Any) -> Any:
        spent = [one for one in given if isinstance(one, torch.Tensor) and one.shape[0] == given[0].shape[0]]
        self._bench.time(title, self._bench.blocks, partial(work, *given, **named), spent)
        return work(*given, **named)
