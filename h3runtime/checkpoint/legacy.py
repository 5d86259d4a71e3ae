"""The oldest way to mark FP8 layers, turned into today's names and markers (checkpoint-formats §2.5).

    scaled_fp8         at the root: the file is of this kind; two elements: no activation is ever quantised
    L.scale_weight  -> L.weight_scale
    L.scale_input   -> L.input_scale, dropped where it is exactly 1

Every FP8 weight that has a scale is marked so; its dtype names the format. Fed by `file`; renames, never decodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.formats import E4M3, FLOAT8, FLOATS
from h3runtime.checkpoint.markers import Marker
from h3runtime.errors import Offence

ROOT = "scaled_fp8"
NAMES = {"scale_weight": "weight_scale", "scale_input": "input_scale"}


@dataclass(frozen=True, slots=True)
class Modern:
    """A file's tensors under today's names, the markers that it implies, and what is wrong with it."""

    entries: Mapping[str, StoredTensor]
    markers: Mapping[str, Marker]
    offences: tuple[Offence, ...] = ()


def modernise(entries: Mapping[str, StoredTensor], read: Callable[[str], torch.Tensor]) -> Modern:
    """`read` gives the tensor of a name; it is asked for scalars only. Files without `scaled_fp8` stay as they are."""
    root = entries.get(ROOT)
    if root is None:
        return Modern(entries, {})
    renamed: dict[str, StoredTensor] = {}
    offences = []
    for name, entry in entries.items():
        new = _today(name)
        if new is None or (name.endswith(".scale_input") and _is_one(entry, read)):
            continue
        if new != name and new in entries:
            offences.append(Offence(name, f"is there under both names, the other is {new}"))
        renamed[new] = replace(entry, name=new)
    full_precision = math.prod(root.shape) == 2
    return Modern(renamed, _markers(renamed, root.dtype, full_precision), tuple(offences))


def _today(name: str) -> str | None:
    """Today's name, or None for the mark of the file itself."""
    if name == ROOT:
        return None
    layer, _, leaf = name.rpartition(".")
    return f"{layer}.{NAMES[leaf]}" if layer and leaf in NAMES else name


def _is_one(entry: StoredTensor, read: Callable[[str], torch.Tensor]) -> bool:
    if entry.dtype not in FLOATS or entry.shape not in ((), (1,)):
        return False
    return read(entry.name).item() == 1.0


def _markers(entries: Mapping[str, StoredTensor], kind: torch.dtype, full_precision: bool) -> dict[str, Marker]:
    """Raw U8 weights are of the root's own FP8 dtype where it has one, else E4M3."""
    raw = kind if kind in FLOAT8 else E4M3
    found = {}
    for name in entries:
        layer = name.removesuffix(".weight_scale")
        weight = entries.get(f"{layer}.weight")
        if layer == name or weight is None or weight.dtype not in (*FLOAT8, torch.uint8):
            continue
        dtype = weight.dtype if weight.dtype in FLOAT8 else raw
        found[layer] = Marker(str(dtype).removeprefix("torch."), full_precision)
    return found
