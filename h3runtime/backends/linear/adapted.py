"""Adapters beside the weights of a loaded model: side branches on linears, merged copies of small parameters.

    y = base(x) + strength * scale * (x A^T) B^T       a pair; rows of B may belong to some of the layer's rows only
    y = base(x) + strength * x D^T                     a whole difference of the weight, in full rank
    y = base(x) + sum_i s_i ((x W_i^T + b_i) - base(x))     replacements, which stack (dit-contract §7.4)

Whatever form the base keeps its weight in, it is never touched, decoded or written to: `base` is asked as always. A
branch reads the x that the base reads (for rotated formats the unrotated one). Everything is computed in x's dtype, as
the matmul accumulates it; x A^T is rounded to x's dtype once, and the sum with y once more. A parameter that is no
linear (a norm, an output head) is replaced by a copy, merged in fp32 and rounded to its own dtype.

`adapted` puts all that into a model for the length of a run and takes it out again; a model without it has its own
modules, so a run without adapters computes what it always did and asks nobody. What fuses the making of a layer's input
with the layer must leave an adapted one alone (`is_adapted`): the branch needs the input itself. Fed by `engine` with
what `checkpoint.lora` read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.quant.row_codes import RowCodes

BELOW = ".base"
"""What an adapted layer's own linear is called behind the layer's name, for as long as it is adapted."""
Move = tuple[int, int, int]
"""(a, b, c): rows a..b of what an adapter holds belong to the layer's rows from c on."""


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """down A [r, K], up B [n, r], any float dtype; scale: alpha / rank; moves: where B's rows belong. name: what the
    adapter calls the layer."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float
    moves: tuple[Move, ...]
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """Of a weight: [n, K], or of a vector [n]; moves: where its rows belong."""

    values: torch.Tensor
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """All that one adapter changes of one layer. weight, bias: what replaces the layer's own, [N, K] and [N], or of a
    stacked output head k*N rows, head 0 whole and offsets after it (dit-contract §4.7)."""

    pairs: tuple[LowRank, ...] = ()
    differences: tuple[Difference, ...] = ()
    bias_differences: tuple[Difference, ...] = ()
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        held = [t for pair in self.pairs for t in (pair.down, pair.up)]
        held += [part.values for part in (*self.differences, *self.bias_differences)]
        return sum(t.nbytes for t in (*held, self.weight, self.bias) if t is not None)


Weighted = tuple[float, Change]
"""A strength and what it is the strength of."""
Undo = tuple[nn.Module, str, Any]
"""Whose, its name, and what was there."""


class AdaptedLinear(nn.Module):
    """Stands where a `BackendLinear` stood, with branches beside it. The same in and out: x [..., K] -> [..., N]; or x
    in codes with the values beside them, which the branches read."""

    def __init__(self, base: nn.Module, changes: Sequence[Weighted]) -> None:
        super().__init__()
        self.base = base
        self.changes = tuple(changes)
        self._weights = [(s, change.weight) for s, change in changes if change.weight is not None]
        self._own = 1.0 - sum(s for s, _ in self._weights)
        self._moves_bias = any(change.bias is not None or change.bias_differences for _, change in changes)

    @property
    def backend(self) -> Any:
        return self.base.backend

    @property
    def resident(self) -> Any:
        """The base's: adapters change nothing of it."""
        return self.base.resident

    @property
    def asks_base(self) -> bool:
        """Whether it asks its base for x W^T, just so."""
        return not self._weights and not self._moves_bias

    def forward(self, x: torch.Tensor | RowCodes) -> torch.Tensor:
        given = x
        if isinstance(x, RowCodes):
            assert x.values is not None and self.asks_base
            x = x.values
        y: torch.Tensor = self.base(given) if self.asks_base else self._replaced(x)
        flat, rows = y.reshape(-1, y.shape[-1]), x.reshape(-1, x.shape[-1])
        for strength, change in self.changes:
            for pair in change.pairs:
                inner = F.linear(rows, pair.down.to(x.dtype))
                _add(flat, inner, pair.up, pair.moves, strength * pair.scale)
            for part in change.differences:
                _add(flat, rows, part.values, part.moves, strength)
        return flat.view(y.shape)

    def _replaced(self, x: torch.Tensor) -> torch.Tensor:
        """What the base and all replacements come to. A base whose whole weight is replaced isn't asked for it."""
        held = self.resident.bias
        if not self._weights:
            y: torch.Tensor = self.base(x)
            own = torch.zeros_like(y[0]) if held is None else held.to(x.dtype)
            return y.add_(self._bias(own) - own)
        rows = self._weights[0][1].shape[0]
        own = x.new_zeros(rows) if held is None else held.to(x.dtype)
        bias = self._bias(own)
        if len(self._weights) == 1 and self._weights[0][0] == 1.0:
            return F.linear(x, self._weights[0][1].to(x.dtype), bias)
        y = bias.expand(*x.shape[:-1], rows)
        if self._own:
            y = y + self._own * (self.base(x) - own)
        for strength, weight in self._weights:
            y = y + strength * F.linear(x, weight.to(x.dtype))
        return y

    def _bias(self, own: torch.Tensor) -> torch.Tensor:
        """The base's bias [N], replaced and moved; in x's dtype."""
        sets = [(s, change.bias) for s, change in self.changes if change.bias is not None]
        if len(sets) == 1 and sets[0][0] == 1.0:
            bias = sets[0][1].to(own.dtype, copy=True)
        else:
            bias = own.clone()
            for strength, new in sets:
                bias += strength * (new.to(own.dtype) - own)
        for strength, change in self.changes:
            for part in change.bias_differences:
                for first, last, to in part.moves:
                    bias[to : to + last - first] += strength * part.values[first:last].to(own.dtype)
        return bias


def is_adapted(module: nn.Module) -> bool:
    """Whether an adapter is active on this layer, so that nothing may be fused into it."""
    return isinstance(module, AdaptedLinear)


@contextmanager
def adapted(model: nn.Module, changes: Mapping[str, Sequence[Weighted]]) -> Iterator[None]:
    """`model` with `changes`, by dotted names of its layers, until the context ends, however it ends.

    Strengths of 0 change nothing: what has no other keeps its own module.
    """
    undo: list[Undo] = []
    try:
        for name, found in changes.items():
            active = [(strength, change) for strength, change in found if strength]
            if active:
                _attach(model, name, active, undo)
        yield
    finally:
        for owner, leaf, own in reversed(undo):
            setattr(owner, leaf, own)


def merged(own: torch.Tensor, changes: Sequence[Weighted], *, leaf: str = "weight") -> torch.Tensor:
    """A small parameter with its changes, by fp32 arithmetic and one rounding to its own dtype. For reading alone: what
    replaces it whole isn't copied.

    own [N, ...]; a replacement of k*N rows makes it k*N rows, the further ones having been zeros.
    """
    sets = [(s, new) for s, c in changes if (new := c.weight if leaf == "weight" else c.bias) is not None]
    if len(sets) == 1 and sets[0][0] == 1.0 and len(changes) == 1 and not _adds(changes[0][1], leaf):
        return sets[0][1].to(own.dtype)
    base = own.float()
    rows = max([base.shape[0], *(new.shape[0] for _, new in sets)])
    base = F.pad(base, (0, 0) * (base.ndim - 1) + (0, rows - base.shape[0]))
    found = base.clone()
    for strength, new in sets:
        found += strength * (F.pad(new.float(), (0, 0) * (new.ndim - 1) + (0, rows - new.shape[0])) - base)
    for strength, change in changes:
        _add_merged(found, strength, change, leaf)
    return found.to(own.dtype)


def _adds(change: Change, leaf: str) -> bool:
    return bool((change.pairs or change.differences) if leaf == "weight" else change.bias_differences)


def _add_merged(found: torch.Tensor, strength: float, change: Change, leaf: str) -> None:
    for pair in change.pairs if leaf == "weight" else ():
        delta = pair.up.float() @ pair.down.float()
        for first, last, to in pair.moves:
            found[to : to + last - first] += strength * pair.scale * delta[first:last]
    for part in change.differences if leaf == "weight" else change.bias_differences:
        for first, last, to in part.moves:
            found[to : to + last - first] += strength * part.values[first:last].float()


def _add(y: torch.Tensor, x: torch.Tensor, rows: torch.Tensor, moves: Sequence[Move], factor: float) -> None:
    """y [S, N] += factor * x rows^T, in place, each piece of rows where it belongs."""
    for first, last, to in moves:
        y[:, to : to + last - first].addmm_(x, rows[first:last].to(x.dtype).t(), alpha=factor)


def _attach(model: nn.Module, name: str, changes: Sequence[Weighted], undo: list[Undo]) -> None:
    """Tells `undo` of everything that is put in another's place, as soon as it is."""
    module = model.get_submodule(name)
    if isinstance(module, BackendLinear):
        parent, _, leaf = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, leaf, AdaptedLinear(module, changes))
        undo.append((owner, leaf, module))
        return
    for leaf in ("weight", "bias"):
        own = getattr(module, leaf, None)
        if own is not None and any(_touches(change, leaf) for _, change in changes):
            setattr(module, leaf, nn.Parameter(merged(own, changes, leaf=leaf), requires_grad=False))
            undo.append((module, leaf, own))


def _touches(change: Change, leaf: str) -> bool:
    return _adds(change, leaf) or (change.weight if leaf == "weight" else change.bias) is not None
