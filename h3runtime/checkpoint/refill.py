"""A model's weights read from their file once more, part by part, in the order in which the parts are needed.

    refill = Refill(module, file, rule, parts)      while `module` is bare, on meta
    load_module(module, file, device=meta, ...)     all is judged and hashed, nothing kept
    for values in refill.read(parts, device): ...   any number of times; values by place, a part's at a time

It reads as `load_module` does and makes the same of what it reads, but judges no values again: the file is the one that
was judged and hashed, for it stays open, and its size, times and place in the folder are looked at after each reading.
Knows no residency; `engine.visits` puts the values where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing

import torch
from torch import nn

from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.groups import Group, Made, groups_of, made_of
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.checkpoint.stream import Reading, stream_groups


class Refill:
    """Of `module`, not filled yet, from `file`, which it keeps open. parts: names of submodules that hold all of it."""

    def __init__(self, module: nn.Module, file: CheckpointFile, rule: LoadRule, parts: Sequence[str]) -> None:
        self._file, self._rule = file, rule
        self._groups: dict[str, list[Group]] = {part: [] for part in parts}
        for group in groups_of(module, file, rule):
            (part,) = (part for part in parts if group.name == part or group.name.startswith(f"{part}."))
            self._groups[part].append(group)

    def read(
        self, parts: Sequence[str], device: torch.device, poll: Callable[[], None]
    ) -> Generator[Mapping[str, Made], None, None]:
        """What each of `parts` is made of, by name in the model; of a linear and an embedding, as a file stores them.

        `poll` is called for every block that is read, and may raise. CheckpointError for what can't be read, and for a
        file that was written to or replaced: before anything is read, or when all is.
        """
        for file in self._file.parts:
            file.require_unchanged()
        names = [[name for group in self._groups[part] for name in group.names] for part in parts]
        reading = Reading(on_position=lambda _: poll())
        held: dict[str, torch.Tensor] = {}
        try:
            with closing(stream_groups(self._file, names, device, reading)) as tensors:
                for part, wanted in zip(parts, names, strict=True):
                    while not held.keys() >= set(wanted):
                        name, tensor = next(tensors)
                        held[name] = tensor
                        del tensor
                    yield self._made(part, held)
                # What comes after the last tensor: whether it is the same file still.
                assert next(tensors, None) is None
        finally:
            for file in self._file.parts:
                file.drop()

    def _made(self, part: str, held: dict[str, torch.Tensor]) -> Mapping[str, Made]:
        """Of what is held, which isn't any more."""
        made = {}
        for group in self._groups[part]:
            tensors = {name: held.pop(name) for name in group.names}
            made[group.name] = made_of(group, tensors, self._file, self._rule)
        return made

    def close(self) -> None:
        self._file.close()
