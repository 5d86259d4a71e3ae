"""One forward of the network recorded as a CUDA graph, on tensors of its own.

Inputs are copied in, the graph is launched, results are copied out; so it serves every step and every run of one shape.
Computes nothing: `Dit` does, once, while CUDA listens. Its results are the network's bit for bit, which is checked when
it is made. Fed by `recordings`, which decides whether there is one and for how long.

    copied in, a run    prefix [P, hidden], rotary [S, 3n]
    copied in, a step   video, audio, modulation: of every block [M*3, 6*hidden], final [M, 2*hidden]; 10 MB a timestep
    read in place       weights, and what the producers hold for such rows: whoever keeps it sees that they stay
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.backends.fused.base import Rotary
from h3runtime.backends.linear.adapted import AdaptedLinear
from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.fc2_schedule import schedule_of
from h3runtime.backends.linear.nvfp4_base import packings_of
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit, Prepared
from h3runtime.denoiser.plan import Tables
from h3runtime.denoiser.timeline import Timeline

Results = tuple[torch.Tensor, torch.Tensor]
FP32 = 4


@dataclass(frozen=True, slots=True)
class HeldTables:
    """The modulation of a recording: the same tensors whatever is asked for."""

    blocks: tuple[torch.Tensor, ...]
    final: torch.Tensor

    @classmethod
    def like(cls, tables: Tables, blocks: int) -> HeldTables:
        return cls(tuple(tables.block(i).clone() for i in range(blocks)), tables.final.clone())

    def at(self, timeline: Timeline) -> Tables:  # noqa: ARG002  # part of the interface
        return Tables(self.blocks.__getitem__, self.final)

    def fill(self, tables: Tables) -> None:
        torch._foreach_copy_(self.blocks, [tables.block(i) for i in range(len(self.blocks))])
        self.final.copy_(tables.final)


class Graph(Protocol):
    """What was launched by one call, to be launched again: `results` are the same tensors every time. bytes: that it
    holds. wanted: what the same call gave when nothing was recorded."""

    results: Results
    wanted: Results
    bytes: int

    def replay(self) -> None: ...

    def close(self) -> None:
        """Of no use afterwards."""
        ...


class CudaGraph:
    """RuntimeError where CUDA can't record `call`, which is called twice."""

    def __init__(self, call: Callable[[], Results], device: torch.device) -> None:
        self._device = device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.wanted = self._once(call, stream)
        before = torch.cuda.memory_reserved(device)
        self._graph = torch.cuda.CUDAGraph()
        recorded = torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.device(device), recorded:
            self.results = call()
        self.bytes = max(0, torch.cuda.memory_reserved(device) - before)

    def replay(self) -> None:
        self._graph.replay()

    def close(self) -> None:
        """Gives the pool back to the allocator, once nothing is on its way any more."""
        torch.cuda.synchronize(self._device)
        self._graph.reset()
        self.results = self.wanted

    def _once(self, call: Callable[[], Results], stream: torch.cuda.Stream) -> Results:
        """On the stream that is recorded next, so that what a first call makes, a library's workspace among it, is
        there; then all memory that nothing uses is given back, so that what the recording takes can be counted."""
        current = torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            made = call()
        current.wait_stream(stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return made


class Recording:
    """A forward of `dit` with the shapes of all that is given, attention by `attention` alone.

    RuntimeError where it can't be recorded, ValueError where what was recorded isn't what the network computes. bytes:
    of its pool and its inputs. What a forward's products count is counted of each replay for a step.
    """

    def __init__(
        self,
        dit: Dit,
        prepared: Prepared,
        attention: AttentionBackend,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        graph: Callable[[Callable[[], Results], torch.device], Graph] = CudaGraph,
    ) -> None:
        clock = dit.clock(prepared, sigma)
        self._tables = HeldTables.like(prepared.modulation.at(clock.timeline), len(dit.blocks))
        self._video, self._audio = video.clone(), audio.clone()
        self._prepared = replace(
            prepared,
            prefix=prepared.prefix.clone(),
            rotary=_copied(prepared.rotary),
            modulation=self._tables,
            attention=attention,
        )
        self._counts = counts_of(dit)
        self._calls: list[Any] = []
        forward = partial(dit, self._prepared, self._video, self._audio, sigma)
        self._graph = graph(partial(self._counted, forward), video.device)
        self._held = dit.producers.held_for(clock.rows, video.new_empty(prepared.layout.rows, 0))
        self.bytes = self._graph.bytes + sum(tensor.nbytes for tensor in self._inputs())
        self._check()

    def begin(self, prepared: Prepared) -> None:
        """A run: what none of its steps changes."""
        own = self._prepared
        torch._foreach_copy_([own.prefix, *_parts(own.rotary)], [prepared.prefix, *_parts(prepared.rotary)])

    def __call__(self, tables: Tables, video: torch.Tensor, audio: torch.Tensor) -> Results:
        """A step of the run begun; the results are the caller's."""
        self._tables.fill(tables)
        self._video.copy_(video)
        self._audio.copy_(audio)
        self.replay()
        for count, calls in zip(self._counts, self._calls, strict=True):
            count.add(calls)
        first, second = self._graph.results
        return first.clone(), second.clone()

    def _counted(self, forward: Callable[[], Results]) -> Results:
        """Calls that only a recording makes aren't a run's; what they come to of one forward is kept."""
        before = [count.look() for count in self._counts]
        made = forward()
        self._calls = [count.since(then) for count, then in zip(self._counts, before, strict=True)]
        for count, then in zip(self._counts, before, strict=True):
            count.put_back(then)
        return made

    def replay(self) -> None:
        """Once more on what was copied in last."""
        self._graph.replay()

    def close(self) -> None:
        """Of no use afterwards."""
        self._graph.close()

    def _check(self) -> None:
        """Replayed over results that were spoiled, so that work which nobody recorded shows."""
        for result in self._graph.results:
            result.fill_(float("nan"))
        self.replay()
        if not all(torch.equal(a, b) for a, b in zip(self._graph.results, self._graph.wanted, strict=True)):
            self.close()
            raise ValueError("the recorded forward gave other numbers than the network")

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        own = self._prepared
        return (self._video, self._audio, own.prefix, *_parts(own.rotary), *self._tables.blocks, self._tables.final)


def counts_of(dit: nn.Module) -> list[Any]:
    """What is counted of `dit`'s products (`fc2_schedule.Calls`, `nvfp4_packing.Packings`)."""
    schedule = schedule_of(dit)
    return [*([] if schedule is None else [schedule.calls]), *packings_of(dit)]


def pool_bytes(config: DitConfig, rows: int, dtype: torch.dtype) -> int:
    """What the widest place of a forward holds at least: the sequence, its normed copy, and q, k, v and the attention's
    result or gate, value and their projection; or the final norm in fp32."""
    block = dtype.itemsize * (2 * config.hidden + max(4 * config.inner, 2 * config.ffn + config.hidden))
    return rows * max(block, config.hidden * (dtype.itemsize + 2 * FP32))


def addresses(model: nn.Module) -> tuple[object, ...]:
    """Where everything lies that a forward of `model` reads of it, and what of it is a number in a recorded launch: as
    long as this is the same, a recording reads what the model reads."""
    found: list[object] = []
    for module in model.modules():
        found += [_told(tensor) for tensor in module.parameters(recurse=False)]
        found += [_told(tensor) for tensor in module.buffers(recurse=False)]
        if isinstance(module, BackendLinear):
            found += [module.backend.name, _told(module.resident)]
        elif isinstance(module, AdaptedLinear):
            found.append(_told(module.changes))
    return tuple(found)


def _told(value: Any) -> object:
    """Tensors by address, shape and strides, numbers as they are; of dataclasses and sequences, every part."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype
    if is_dataclass(value):
        return tuple(_told(getattr(value, part.name)) for part in fields(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_told(part) for part in value)
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def _copied(rotary: Rotary) -> Rotary:
    both, signed = (None if part is None else part.clone() for part in (rotary.both, rotary.signed))
    return Rotary(rotary.cos.clone(), rotary.sin.clone(), both, signed)


def _parts(rotary: Rotary) -> list[torch.Tensor]:
    return [part for part in (rotary.cos, rotary.sin, rotary.both, rotary.signed) if part is not None]
