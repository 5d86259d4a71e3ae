"""Where the time of one block goes: nine parts, each by the device's own clock where it has one.

Watches from outside: hooks on the four linears, a stand-in for the attention backend and one for the producers, so that
what is timed is the block that runs otherwise. Computes nothing itself. Fed by `engine.block_profile`.

    qkv, output, fc1, fc2   the linears, with whatever their backend does around its product
    rope_rms                norm and rotation of q and k           attention   the backend's call, quantisation included
    activation              SwiGLU                                 modulation_gating   norms, modulation, gates,
                            and FP8 codes that no other producer ends in
    total                   the whole block, launches and gaps included
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from h3runtime.backends.attention.around import AttentionAround
from h3runtime.backends.fused.base import Activation, Form, NormWeight, Producers, Rotary, TableRows
from h3runtime.denoiser.blocks import AttentionCall, Block

PARTS: Final = (
    "qkv",
    "rope_rms",
    "attention",
    "output",
    "fc1",
    "activation",
    "fc2",
    "modulation_gating",
    "total",
)


class Stopwatch:
    """Times parts in stream order; on an accelerator nothing waits before `milliseconds`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: list[tuple[str, Any, Any]] = []

    def mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def take(self, part: str, since: Any) -> None:
        self._taken.append((part, since, self.mark()))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        since = self.mark()
        yield
        self.take(name, since)

    def attention(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        with self.part("attention"):
            return call()

    def milliseconds(self) -> dict[str, float]:
        """What was taken since the last question, by part; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        found = dict.fromkeys(PARTS, 0.0)
        for part, since, until in self._taken:
            found[part] += since.elapsed_time(until) if self._device.type == "cuda" else 1000 * (until - since)
        self._taken.clear()
        return found


class TimedProducers:
    """Producers as the block sees them."""

    def __init__(self, own: Producers, watch: Stopwatch) -> None:
        self.name, self.grade = own.name, own.grade
        self.gives_codes, self.packs = own.gives_codes, own.packs
        self.own, self.watch = own, watch

    def why_unavailable(self, device: torch.device) -> str | None:
        return self.own.why_unavailable(device)

    def rotary(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotary:
        return self.own.rotary(cos, sin)

    def norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
        with self.watch.part("modulation_gating"):
            return self.own.norm(x, norm)

    def norm_modulate(
        self,
        x: torch.Tensor,
        norm: NormWeight,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: TableRows,
        *,
        codes: Form | None = None,
    ) -> Activation:
        with self.watch.part("modulation_gating"):
            return self.own.norm_modulate(x, norm, shift, scale, rows, codes=codes)

    def norm_rotate_(self, qkv: torch.Tensor, q_norm: NormWeight, k_norm: NormWeight, rotary: Rotary | None) -> None:
        with self.watch.part("rope_rms"):
            self.own.norm_rotate_(qkv, q_norm, k_norm, rotary)

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        with self.watch.part("activation"):
            return self.own.swiglu(x, codes=codes)

    def add_gated_(self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: TableRows) -> torch.Tensor:
        with self.watch.part("modulation_gating"):
            return self.own.add_gated_(x, update, gate, rows)

    def add_gated_norm_modulate(
        self,
        x: torch.Tensor,
        update: torch.Tensor,
        gate: torch.Tensor,
        norm: NormWeight,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: TableRows,
        *,
        codes: Form | None = None,
    ) -> Activation:
        with self.watch.part("modulation_gating"):
            return self.own.add_gated_norm_modulate(x, update, gate, norm, shift, scale, rows, codes=codes)

    def encode(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Activation:
        with self.watch.part("modulation_gating"):
            return self.own.encode(x, scale)

    def held_for(self, rows: TableRows, x: torch.Tensor) -> object:
        return self.own.held_for(rows, x)


def time_block(
    block: Block, h: torch.Tensor, table: torch.Tensor, rows: Any, call: AttentionCall, watch: Stopwatch
) -> dict[str, float]:
    """One call of `block`, h [S, hidden] updated in place -> milliseconds of each of `PARTS`."""
    timed = replace(
        call, backend=AttentionAround(call.backend, watch.attention), producers=TimedProducers(call.producers, watch)
    )
    linears = (
        (block.attn.qkv_proj, "qkv"),
        (block.attn.out_proj, "output"),
        (block.mlp.fc1, "fc1"),
        (block.mlp.fc2, "fc2"),
    )
    with ExitStack() as hooks:
        for linear, part in linears:
            hooks.enter_context(_hooked(linear, part, watch))
        with watch.part("total"):
            block(h, table, rows, timed)
    return watch.milliseconds()


@contextmanager
def _hooked(linear: nn.Module, part: str, watch: Stopwatch) -> Iterator[None]:
    since: list[Any] = []
    before = linear.register_forward_pre_hook(lambda *_: since.append(watch.mark()))
    after = linear.register_forward_hook(lambda *_: watch.take(part, since.pop()))
    try:
        yield
    finally:
        before.remove()
        after.remove()
