"""Which stored tensors become one thing in a model, and what they become: the same at a load and at every later read.

    groups_of    a model on the meta device, before anything is installed in it -> its groups
    made_of      a group's tensors -> a linear's or an embedding's `StoredWeight`, or the one tensor itself

Nothing is read or installed here. Asked by `load` and `refill`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from h3runtime.checkpoint.assemble import assemble
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.formats import FLOAT8
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.quant.stored import PlainWeight, StoredWeight

Made = StoredWeight | torch.Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Stored tensors, by name, that become one thing: a linear, an embedding, or (no `target`) one tensor of the model.

    target: the module as the model wrote it.
    """

    name: str
    names: frozenset[str]
    target: nn.Module | None = None


def groups_of(module: nn.Module, file: CheckpointFile, rule: LoadRule) -> Iterator[Group]:
    """Everything that `module` takes from `file`."""
    pending = {name for name in module.state_dict() if not rule.ignores(name)}
    for name, target in module.named_modules():
        layer = file.layers.get(name)
        if f"{name}.weight" not in pending or (layer is None and not isinstance(target, nn.Linear)):
            continue
        own = {f"{name}.weight", f"{name}.bias"} & pending
        yield Group(name, frozenset(own | set(layer.sidecars if layer else ())), target)
        pending -= own
    for name in pending:
        yield Group(name, frozenset((name,)))


def made_of(group: Group, tensors: Mapping[str, torch.Tensor], file: CheckpointFile, rule: LoadRule) -> Made:
    """Quantised parts stay as stored, whatever the rule's cast; all else follows it, a bias too."""
    if group.target is None:
        return _widened(_cast(tensors[group.name], rule))
    bias = tensors.get(f"{group.name}.bias")
    bias = None if bias is None else _cast(bias, rule)
    layer = file.layers.get(group.name)
    if layer is None:
        return PlainWeight(_cast(tensors[f"{group.name}.weight"], rule), bias)
    assert isinstance(group.target, nn.Linear | nn.Embedding)
    rows, columns = group.target.weight.shape
    return assemble(layer, tensors, (rows, columns), bias)


def assign(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """`tensor` in the place of the parameter or buffer called `name` (dotted)."""
    parent, _, leaf = name.rpartition(".")
    owner = module.get_submodule(parent)
    is_parameter = isinstance(getattr(owner, leaf), nn.Parameter)
    setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)


def _cast(tensor: torch.Tensor, rule: LoadRule) -> torch.Tensor:
    return tensor.to(rule.cast) if tensor.is_floating_point() and rule.cast is not None else tensor


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Bare FP8 outside of linears, where nothing casts on use, as BF16, which holds each of its values exactly."""
    return tensor.to(torch.bfloat16) if tensor.dtype in FLOAT8 else tensor
