"""Whether all weights fit into the device's memory, judged before any data is read, with the sum spelled out.

    what each file leaves resident         `resident_bytes`: quantised layers as stored, the rest in the rule's dtype
    + what one clip takes above it         `working_bytes`: rows x (3 x ffn + hidden) x bytes of the compute dtype
    <= what is free on the device

With weights of the published sizes the clip is 37,810 rows x 96,768 bytes = 3.41 GiB; measured were 3.4 GiB above the
weights while sampling it (LOG.md, NVFP4 and INT8 alike). Larger clips need more, and tell when their time comes.

`load` feeds it with everything that it is about to load; `inspection` asks what one file would take, `memory_formulas`
what a clip of other rows would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.denoiser.config import DitConfig
from h3runtime.errors import CheckpointError, Offence, SettingsError
from h3runtime.settings import GIB, MIB, PARTITION_PATHS, variable

ROWS = 37_810
"""Packed rows of the clip that is reckoned with (performance.md)."""
CLIP = "a 1344x768 clip of 124 frames"


@dataclass(frozen=True, slots=True)
class Weights:
    """What a file would leave resident. name: as people say it. partition: of a transformer."""

    name: str
    file: str
    bytes: int
    partition: str | None = None


def resident_bytes(module: nn.Module, file: CheckpointFile, rule: LoadRule) -> int:
    """Of everything that the model takes from the file: quantised layers as stored, the rest in the rule's dtype."""
    total = 0
    for name in module.state_dict():
        entry = file.entries.get(name)
        if entry is None or rule.ignores(name):
            continue
        layer = file.layers.get(name.removesuffix(".weight"))
        if layer is not None:
            total += entry.nbytes + sum(file.entries[s].nbytes for s in layer.sidecars)
        else:
            cast = rule.cast if rule.cast is not None and entry.dtype.is_floating_point else entry.dtype
            total += math.prod(entry.shape) * cast.itemsize
    return total


def working_bytes(config: DitConfig, dtype: torch.dtype, rows: int = ROWS) -> int:
    """What the widest place of a block holds for all rows: gate and value, their product, the residual stream."""
    return rows * (3 * config.ffn + config.hidden) * dtype.itemsize


def require_room(weights: Sequence[Weights], working: int, free: int, device: torch.device) -> None:
    """SettingsError where two partitions are one too many, else CheckpointError, if `free` bytes are too few.

    working: bytes to be left for a clip. free: 0 is unknown and enough.
    """
    needed = sum(part.bytes for part in weights) + working
    if not free or needed <= free:
        return
    unit = GIB if needed >= GIB else MIB
    terms = [f"{part.name} {_in(part.bytes, unit)} ({part.file})" for part in weights]
    terms.append(f"{_in(working, unit)} to sample {CLIP}")
    short = f"{device} has {_in(free, unit)} free: short by {_in(needed - free, unit)}"
    told = f"the weights don't fit into memory: {' + '.join(terms)} = {_in(needed, unit)}, but {short}"
    transformers = [part for part in weights if part.partition is not None]
    if len(transformers) < 2:
        raise CheckpointError(told, [Offence("memory", told)])
    second = transformers[-1]
    field = variable(PARTITION_PATHS[str(second.partition)])
    way_out = "would fit" if needed - second.bytes <= free else "still would not fit"
    legal = f"no {field}, which {way_out}, or smaller files"
    raise SettingsError(f"{told}; without {second.name} it {way_out}", [Offence(field, told, legal)])


def _in(count: int, unit: int) -> str:
    return f"{count / unit:.2f} {'GiB' if unit == GIB else 'MiB'}"
