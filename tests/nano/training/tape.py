"""What a CUDA graph is, on a CPU: operations and the tensors they met, done again on the very same memory.

Nothing of Python runs at a replay, so a number that a step took from the host stays what it was when it was recorded,
and a step that reads a value back can't be recorded at all: as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from h3runtime.nano.training.recording import SETTLING, Step

HOST = ("_local_scalar_dense", "lift_fresh", "nonzero", "is_nonzero")
"""Operations that wait for the device, or bring something there."""
SHAPES = ("transpose_", "squeeze_", "unsqueeze_", "t_", "as_strided_")
"""Operations that change how a tensor is seen, once and for all: no kernels."""
Entry = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], dict[int, torch.Tensor]]


class Tape(TorchDispatchMode):
    """Records while it is entered, and takes back whatever was changed in place meanwhile: a graph that is recorded
    isn't run."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self._generator, self._before = generator, dict[int, tuple[torch.Tensor, torch.Tensor]]()
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func._schema.name.split("::")[1] in HOST:
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        met = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        if func._schema.is_mutable:
            for tensor in met:
                self._remember(tensor)
        result = func(*args, **kwargs)
        known = {x.untyped_storage().data_ptr() for x in met}
        made = {i: x for i, x in enumerate(tree_flatten(result)[0]) if isinstance(x, torch.Tensor)}
        fresh = {i: x for i, x in made.items() if x.untyped_storage().data_ptr() not in known}
        self._made |= {x.untyped_storage().data_ptr() for x in fresh.values()}
        if func._schema.name.split("::")[1] not in SHAPES:
            self.entries.append((func, args, kwargs, {i: x.detach() for i, x in fresh.items()}))
        return result

    def _remember(self, tensor: torch.Tensor) -> None:
        where = tensor.untyped_storage().data_ptr()
        if where not in self._made and where not in self._before:
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self._before[where] = whole, whole.clone()

    def take_back(self) -> None:
        for whole, before in self._before.values():
            whole.copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, made in self.entries:
            again = tree_flatten(func(*args, **kwargs))[0]
            for index, old in made.items():
                old.copy_(again[index])


class TapeRecorder:
    """In place of `recording.CudaRecorder`."""

    def __init__(self) -> None:
        self.recorded = 0

    def settle(self, step: Step) -> None:
        for _ in range(SETTLING):
            step()

    def record(self, step: Step, generator: torch.Generator) -> Step:
        state = generator.get_state()
        tape = Tape(generator)
        with tape:
            step()
        tape.take_back()
        generator.set_state(state)
        self.recorded += 1
        return tape.replay
