"""A model as loading would leave it, of tensors that have shapes and no memory: for arithmetic without weights.

    header -> the model on meta -> every linear its resident form on meta, every other tensor its dtype on meta

Everything that is told from loaded models (`linear_memory`, `memory_estimate`) is told from these alike. No byte of a
weight is read. Fed by `planning` with judged parts; `checkpoint.load` fills models for use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear, LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.embedding import install_embedding
from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.groups import assign, groups_of, made_of
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.engine.components import Part
from h3runtime.engine.linear_memory import tensors_of
from h3runtime.quant.stored import Int8Weight, StoredWeight

META = torch.device("meta")


Position = tuple[int, int]
"""In the files, by which loading goes: number of the file, byte."""


@dataclass(frozen=True, slots=True)
class Unfilled:
    """module: on meta. allocations: bytes of its tensors in the order in which loading makes those that stay."""

    module: nn.Module
    allocations: tuple[int, ...]


def unfilled(part: Part, linear: LinearBackend[Any]) -> Unfilled:
    """The model of a part whose header is without fault. linear: of the layers that follow the choice."""
    with part.open() as file:
        module = part.on_meta(file)
        made = sorted(_place(module, file, part.rule, part.linear or linear))
    return Unfilled(module.eval().requires_grad_(False), tuple(nbytes for _, nbytes in made))


def _place(
    module: nn.Module, file: CheckpointFile, rule: LoadRule, linear: LinearBackend[Any]
) -> Iterator[tuple[Position, int]]:
    """Fills `module`; out come where in the files each of its tensors is made, and its bytes: a tensor that stays as it
    is stored when its first byte comes, others once all are there that they are made of."""
    prepared = _Prepared()
    for group in list(groups_of(module, file, rule)):
        entries = [file.entries[name] for name in group.names]
        tensors = {entry.name: torch.empty(entry.shape, dtype=entry.dtype, device=META) for entry in entries}
        made = made_of(group, tensors, file, rule)
        kept: Any = made
        if isinstance(made, torch.Tensor):
            assign(module, group.name, made)
        elif isinstance(group.target, nn.Embedding):
            assert isinstance(made, Int8Weight)
            install_embedding(module, group.name, made)
        else:
            switched = rule.switches(group.name)
            layer = prepared.layer(linear if switched else DequantLinear(), made, switched=switched)
            _set(module, group.name, layer)
            kept = layer.resident
        yield from _made_at(entries, kept)
    for name in [name for name in module.state_dict() if rule.ignores(name)]:
        _set(module, name, None)


def _made_at(entries: Sequence[StoredTensor], kept: Any) -> Iterator[tuple[Position, int]]:
    """kept: what stays of them."""
    sizes = [tensor.nbytes for tensor in tensors_of(kept)]
    if sorted(sizes) == sorted(entry.nbytes for entry in entries):
        yield from ((_first(entry), entry.nbytes) for entry in entries)
        return
    last = max(map(_last, entries))
    yield from ((last, nbytes) for nbytes in sizes)


def _first(entry: StoredTensor) -> Position:
    """Tensors without bytes, and those that a layout computes, come before all."""
    return (entry.spans[0].part, entry.spans[0].start) if entry.spans else (-1, 0)


def _last(entry: StoredTensor) -> Position:
    return (entry.spans[-1].part, entry.spans[-1].stop) if entry.spans else (-1, 0)


class _Prepared:
    """Resident forms: what a backend makes of a weight is asked once for all that are alike."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Any] = {}

    def layer(self, backend: LinearBackend[Any], stored: StoredWeight, *, switched: bool) -> BackendLinear:
        key = (backend.name, type(stored), _described(stored))
        if key not in self._made:
            self._made[key] = backend.prepare(stored, META)
        resident = _anew(self._made[key])
        error = getattr(resident, "error", None)
        return BackendLinear(backend, resident, form=backend.form(stored), switched=switched, error=error)


def _described(value: Any) -> object:
    """Shapes and dtypes in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if is_dataclass(value):
        return tuple(_described(getattr(value, field.name)) for field in fields(value))
    return value


def _anew(value: Any) -> Any:
    """The same with tensors of its own."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _anew(getattr(value, f.name)) for f in fields(value) if f.init})
    return value


def _set(module: nn.Module, name: str, value: nn.Module | None) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, value)
