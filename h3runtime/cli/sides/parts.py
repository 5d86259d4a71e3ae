"""One block in its parts, of two sides on the same input: what each part adds by itself.

Watches from outside, as `denoiser.block_times` does: hooks on the four linears, stand-ins for the attention backend and
the producers. Side A's block runs and every part's result is kept; then side B's runs, and behind each part what A's
gave is put in the place of its own, once the two have been compared. So every part of B starts from A's very numbers,
and what differs behind it is its own doing. B's block runs once more left alone, which gives the whole block's error.

    modulation       [M*3, 6*hidden] the AdaLN table       norm1, norm2   [S, hidden] norm and modulation
    qkv, rope        [S, 3, H, D] products; norm, rotation  attention      [1, S, H, D] the backend
    out, fc1, fc2    products                               activation     [S, ffn] SwiGLU
    gate1, gate2     [S, hidden] the residual stream behind attention and behind the MLP

No part is handed FP8 codes by the one before: its linear rounds for itself, to the same numbers. Fed by `attribution`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import nn

from h3runtime.backends.attention.around import AttentionAround
from h3runtime.backends.fused.base import Activation, Form, NormWeight, Producers, Rotary, TableRows
from h3runtime.denoiser.blocks import AttentionCall, Block
from h3runtime.media.agreement import Agreement

MODULATION: Final = "modulation"
PARTS: Final = (
    MODULATION,
    "norm1",
    "qkv",
    "rope",
    "attention",
    "out",
    "gate1",
    "norm2",
    "fc1",
    "activation",
    "fc2",
    "gate2",
)
"""In the order of a block."""
PIECE: Final = 2**22
"""Elements compared at once: bounds the float64 copies, 32 MB each."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """One block of side A. h [S, hidden]: what it was given. outputs: each part's name and result, in the order of the
    block; the last is the block's own result."""

    h: torch.Tensor
    table: torch.Tensor
    outputs: tuple[tuple[str, torch.Tensor], ...]

    @property
    def after(self) -> torch.Tensor:
        return self.outputs[-1][1]


@dataclass(frozen=True, slots=True)
class BlockFound:
    """parts: sums by name, each from A's own input. whole: of the block left alone, the residual stream behind it."""

    parts: dict[str, Agreement]
    whole: Agreement

    @property
    def worst(self) -> str | None:
        """The part that adds most, by relative L2; None if none adds anything."""
        differ = {name: sums.rel_l2 or 0.0 for name, sums in self.parts.items() if not sums.identical}
        return max(differ, key=lambda name: differ[name]) if differ else None


class Watch(Protocol):
    """Sees every part's result; may write into it."""

    def see(self, part: str, result: torch.Tensor) -> None: ...


class Keeping:
    """Side A's watch. place: where the copies lie."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.kept: list[tuple[str, torch.Tensor]] = []

    def see(self, part: str, result: torch.Tensor) -> None:
        self.kept.append((part, result.detach().to(self.place, copy=True)))


class Forcing:
    """Side B's watch: compares, then puts A's result in the place of its own."""

    def __init__(self, theirs: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._theirs = iter(theirs)
        self.found: dict[str, Agreement] = {}

    def see(self, part: str, result: torch.Tensor) -> None:
        name, theirs = next(self._theirs)
        assert name == part, (name, part)
        moved = theirs.to(result.device)
        self.found[part] = self.found.get(part, Agreement()) + agreement_of(moved, result)
        result.copy_(moved)


def keep_block(
    block: Block, h: torch.Tensor, table: torch.Tensor, rows: Any, call: AttentionCall, place: torch.device
) -> BlockRun:
    """Side A's block on h [S, hidden], which stays as it is."""
    watch = Keeping(place)
    watched(block, h.clone(), table, rows, call, watch)
    return BlockRun(h, table, tuple(watch.kept))


def compare_block(block: Block, run: BlockRun, table: torch.Tensor, rows: Any, call: AttentionCall) -> BlockFound:
    """Side B's block on what A's was given. table: B's own modulation."""
    theirs, h = run.table.to(table.device), run.h.to(table.device)
    watch = Forcing(run.outputs)
    watched(block, h.clone(), theirs, rows, call, watch)
    parts = {MODULATION: agreement_of(theirs, table)} | watch.found
    whole = block(h.clone(), table, rows, call)
    return BlockFound(
        {part: parts[part] for part in PARTS if part in parts}, agreement_of(run.after.to(h.device), whole)
    )


def watched(block: Block, h: torch.Tensor, table: torch.Tensor, rows: Any, call: AttentionCall, watch: Watch) -> None:
    """One call of `block`, h updated in place; `watch` sees every part."""
    seen = replace(
        call,
        backend=AttentionAround(call.backend, partial(attended, watch=watch)),
        producers=WatchedProducers(call.producers, watch),
    )
    linears = (
        (block.attn.qkv_proj, "qkv"),
        (block.attn.out_proj, "out"),
        (block.mlp.fc1, "fc1"),
        (block.mlp.fc2, "fc2"),
    )
    with ExitStack() as hooks:
        for linear, part in linears:
            hooks.enter_context(_hooked(linear, part, watch))
        block(h, table, rows, seen)


def agreement_of(a: torch.Tensor, b: torch.Tensor) -> Agreement:
    """`Agreement.of` on the tensors' own device, in pieces; one wait for the device."""
    assert a.shape == b.shape, (a.shape, b.shape)
    sums = torch.zeros(5, dtype=torch.float64, device=a.device)
    largest = torch.zeros((), dtype=torch.float64, device=a.device)
    for x, y in zip(torch.split(a.reshape(-1), PIECE), torch.split(b.reshape(-1), PIECE), strict=True):
        first, second = x.double(), y.double()
        apart = (second - first).abs()
        largest = torch.maximum(largest, apart.max())
        sums += torch.stack([apart.sum(), apart @ apart, first @ first, second @ second, first @ second])
    absolute, squared, a_squared, b_squared, product = sums.tolist()
    return Agreement(a.numel(), float(largest), absolute, squared, a_squared, b_squared, product)


def attended(call: Callable[[], torch.Tensor], watch: Watch) -> torch.Tensor:
    """A call of attention, seen."""
    out = call()
    watch.see("attention", out)
    return out


class WatchedProducers:
    """Producers as the block sees them; of one block, whose norms and gates come in turn."""

    gives_codes = False
    packs = frozenset[str]()

    def __init__(self, own: Producers, watch: Watch) -> None:
        self.name, self.grade = own.name, own.grade
        self.own, self.watch = own, watch
        self._norms, self._gates = iter(("norm1", "norm2")), iter(("gate1", "gate2"))

    def why_unavailable(self, device: torch.device) -> str | None:
        return self.own.why_unavailable(device)

    def rotary(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotary:
        return self.own.rotary(cos, sin)

    def norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
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
        return self._seen(next(self._norms), self.own.norm_modulate(x, norm, shift, scale, rows, codes=codes))

    def norm_rotate_(self, qkv: torch.Tensor, q_norm: NormWeight, k_norm: NormWeight, rotary: Rotary | None) -> None:
        self.own.norm_rotate_(qkv, q_norm, k_norm, rotary)
        self.watch.see("rope", qkv)

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        return self._seen("activation", self.own.swiglu(x, codes=codes))

    def add_gated_(self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: TableRows) -> torch.Tensor:
        added = self.own.add_gated_(x, update, gate, rows)
        self.watch.see(next(self._gates), added)
        return added

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
        """One after the other, so that both are seen."""
        return self.norm_modulate(self.add_gated_(x, update, gate, rows), norm, shift, scale, rows, codes=codes)

    def encode(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Activation:
        return self.own.encode(x, scale)

    def held_for(self, rows: TableRows, x: torch.Tensor) -> object:
        return self.own.held_for(rows, x)

    def _seen(self, part: str, made: Activation) -> Activation:
        assert isinstance(made, torch.Tensor), "codes were not asked for"
        self.watch.see(part, made)
        return made


@contextmanager
def _hooked(linear: nn.Module, part: str, watch: Watch) -> Iterator[None]:
    hook = linear.register_forward_hook(lambda _, __, result: watch.see(part, result))
    try:
        yield
    finally:
        hook.remove()
