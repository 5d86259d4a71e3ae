"""Whether all weights fit into the device's memory, judged before any data is read, with the sum spelled out.

    what each file leaves resident         `resident_bytes`: what the linear backend keeps, the rest in the rule's dtype
    + what one clip takes above it         `working_bytes`: rows x (3 x ffn + hidden) x bytes of the compute dtype
    <= what is free on the device, less what the system keeps (`memory_budget`)

With weights of the published sizes the clip is 37,810 rows x 96,768 bytes = 3.41 GiB; measured were 3.4 GiB above the
weights while sampling it (LOG.md, NVFP4 and INT8 alike). Larger clips need more, and tell when their time comes.

`load` feeds it with everything that it is about to load; `inspection` asks what one file would take, `memory_formulas`
what a clip of other rows would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine.memory_budget import Budget
from h3runtime.engine.residency import Units
from h3runtime.errors import CheckpointError, Offence, SettingsError
from h3runtime.settings import GIB, MIB, PARTITION_PATHS, variable

ROWS = 37_810
"""Packed rows of the clip that is reckoned with (performance.md)."""
CLIP = "a 1344x768 clip of 124 frames"
LONGEST_ROWS = 109_162
"""Packed rows of the same canvas over 362 frames, the longest clip (performance.md): weights that are decoded once must
leave room for it."""
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Weights:
    """What a file would leave resident. name: as people say it. partition: of a transformer."""

    name: str
    file: str
    bytes: int
    partition: str | None = None


def resident_bytes(module: nn.Module, file: CheckpointFile, rule: LoadRule, linear: LinearBackend[Any]) -> int:
    """Of everything that the model takes from the file."""
    return sum(resident_by_name(module, file, rule, linear).values())


def resident_by_name(
    module: nn.Module, file: CheckpointFile, rule: LoadRule, linear: LinearBackend[Any]
) -> dict[str, int]:
    """By name of the model's tensors: what `linear` keeps of the layers that follow the choice, other quantised layers
    as stored, the rest in the rule's dtype. What a layer keeps beside its weight counts with that."""
    found: dict[str, int] = {}
    for name in module.state_dict():
        entry = file.entries.get(name)
        if entry is None or rule.ignores(name):
            continue
        owner = name.removesuffix(".weight")
        layer = file.layers.get(owner)
        if layer is not None:
            stored = entry.nbytes + sum(file.entries[s].nbytes for s in layer.sidecars)
        else:
            cast = rule.cast if rule.cast is not None and entry.dtype.is_floating_point else entry.dtype
            stored = math.prod(entry.shape) * cast.itemsize
        if owner != name and rule.switches(owner):
            shape = entry.shape if layer is None else layer.shape
            stored = linear.resident_bytes(layer.marker.format if layer else PLAIN, (shape[0], shape[1]), stored)
        found[name] = stored
    return found


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes beside the weights that stay. sampling: of the clip that is reckoned with. reading: of what comes to the
    device while a prompt is read. movable: what would be spared if the text encoder were moved, 0 where it is."""

    sampling: int
    reading: int = 0
    movable: int = 0

    @property
    def most(self) -> int:
        """They come one after the other."""
        return max(self.sampling, self.reading)

    def told(self, unit: int) -> str:
        if self.reading > self.sampling:
            return f"{told_bytes(self.reading, unit)} of the text encoder while it reads a prompt"
        return f"{told_bytes(self.sampling, unit)} to sample {CLIP}"


def working_bytes(config: DitConfig, dtype: torch.dtype, rows: int = ROWS) -> int:
    """What the widest place of a block holds for all rows: gate and value, their product, the residual stream."""
    return rows * (3 * config.ffn + config.hidden) * dtype.itemsize


def needed_bytes(weights: Sequence[Weights], working: int) -> int:
    return sum(part.bytes for part in weights) + working


def why_short(weights: Sequence[Weights], working: int, budget: Budget) -> str | None:
    """Why `weights` shouldn't be kept in that form, if beside the longest clip they take more than there is room for.
    Where nothing tells what is free, everything fits."""
    needed = needed_bytes(weights, working)
    if budget.loadable is None or needed <= budget.loadable:
        return None
    unit = GIB if needed >= GIB else MIB
    there = told_bytes(budget.loadable, unit)
    return f"they and the longest clip take {told_bytes(needed, unit)} of {there} that are free"


def why_decoding(short: str) -> str:
    """Why `auto` decodes weights at every call. short: `why_short`."""
    return f"auto: weights are decoded at every call, for decoded once {short}"


def require_room(weights: Sequence[Weights], needs: Needs, budget: Budget, device: torch.device) -> None:
    """SettingsError where two partitions are one too many, else CheckpointError, if there is too little room; with the
    figures, and whether `H3_RESIDENCY` would help. Where nothing tells what is free, there is enough.

    weights: those that are always on the device.
    """
    needed, room = needed_bytes(weights, needs.most), budget.loadable
    if room is None or needed <= room:
        return
    unit = GIB if needed >= GIB else MIB
    terms = [f"{part.name} {told_bytes(part.bytes, unit)} ({part.file})" for part in weights]
    terms.append(needs.told(unit))
    short = f"{device} has {told_budget(budget, unit)}: short by {told_bytes(needed - room, unit)}"
    told = f"the weights don't fit into memory: {' + '.join(terms)} = {told_bytes(needed, unit)}, but {short}"
    if budget.kind == "discrete" and needs.movable and needed - needs.movable <= room:
        told += f"; with {variable('residency')}=encoder_host it would fit"
    transformers = [part for part in weights if part.partition is not None]
    if len(transformers) < 2:
        raise CheckpointError(told, [Offence("memory", told)])
    second = transformers[-1]
    field = variable(PARTITION_PATHS[str(second.partition)])
    way_out = "would fit" if needed - second.bytes <= room else "still would not fit"
    legal = f"no {field}, which {way_out}, or smaller files"
    raise SettingsError(f"{told}; without {second.name} it {way_out}", [Offence(field, told, legal)])


def require_host_room(encoder: Units, budget: Budget) -> None:
    """SettingsError if the host has too little room to keep the text encoder and to pack one unit of it after the
    other. budget: of the host."""
    needed, room = encoder.total + max(encoder.embedding, encoder.tower, *encoder.layers), budget.loadable
    if room is None or needed <= room:
        return
    unit, field = GIB if needed >= GIB else MIB, variable("residency")
    told = f"the text encoder takes {told_bytes(needed, unit)} of the host's memory, which has "
    told += told_budget(budget, unit)
    raise SettingsError(f"{field}: encoder_host: {told}", [Offence(field, told, "encoder_disk, or all")])


def told_budget(budget: Budget, unit: int) -> str:
    """`40.00 GiB free of 44.40 GiB`; of a device that shares the host's memory also what the system keeps of it."""
    told = f"{told_bytes(budget.free, unit)} free"
    if budget.total:
        told += f" of {told_bytes(budget.total, unit)}"
    told += " that it shares with the host" * (budget.kind == "integrated")
    return told + f", and {told_bytes(budget.reserve, unit)} stay the system's" * bool(budget.reserve)


def told_bytes(count: int, unit: int) -> str:
    return f"{count / unit:.2f} {'GiB' if unit == GIB else 'MiB'}"
