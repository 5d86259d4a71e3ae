"""The fused q, k and v of a transformer, and their rows from interleaved to contiguous order (see `qkv_order`).

Tensors are given as spans, so that nothing is copied: weights, scales of rows, tiles of block scales. What can't be put
in order is named. Used by `file`; read by `qkv_order` and `qkv_statistics` for what a transformer's rows are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.layers import QuantLayer
from h3runtime.checkpoint.rearrange import in_order
from h3runtime.errors import Offence
from h3runtime.quant.tiles import TILE_ROWS

Read = Callable[[StoredTensor], torch.Tensor]
QKV: Final = re.compile(r"(token_refiner\.)?blocks\.(\d+)\.attn\.qkv_proj\.weight")
NORM: Final = "blocks.0.attn.q_norm.weight"
SIGNS: Final = ("video_patch_proj.weight", "audio_patch_proj.weight", NORM)
TILED: Final = ("nvfp4", "mxfp8")
UNTOUCHED: Final = ("weight_scale_2", "input_scale", "pre_quant_scale", "weight_codebook")
"""Sidecars that don't know rows."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A component's tensors: as stored, as the model sees their shapes, its quantised layers, and how to read one."""

    entries: Mapping[str, StoredTensor]
    shapes: Mapping[str, tuple[int, ...]]
    layers: Mapping[str, QuantLayer]
    read: Read


@dataclass(frozen=True, slots=True)
class Heads:
    """Of every q, k and v: `count` heads of `width` rows each."""

    count: int
    width: int

    @property
    def rows(self) -> int:
        return 3 * self.count * self.width

    @property
    def groups(self) -> int:
        return 3 * self.count


def heads_of(shapes: Mapping[str, tuple[int, ...]]) -> Heads | None:
    """From names and shapes; None where there is no transformer or its sizes don't fit (the model will say how)."""
    if not all(sign in shapes for sign in SIGNS):
        return None
    fused, norm = shapes.get("blocks.0.attn.qkv_proj.weight", ()), shapes[NORM]
    width = norm[0] if len(norm) == 1 else 0
    if len(fused) != 2 or not width or not fused[0] or fused[0] % (3 * width):
        return None
    return Heads(fused[0] // (3 * width), width)


def as_contiguous(stored: Stored) -> tuple[dict[str, StoredTensor], list[Offence]]:
    """Interleaved tensors of the fused layers, in contiguous order: weights, scales of rows, tiles of block scales."""
    heads, entries = heads_of(stored.shapes), stored.entries
    if heads is None:
        return {}, []
    found: dict[str, StoredTensor] = {}
    offences: list[Offence] = []
    for name in (n for n in entries if QKV.fullmatch(n)):
        layer = stored.layers.get(name.removesuffix(".weight"))
        if len(entries[name].shape) != 2 or entries[name].shape[0] < heads.rows:
            continue
        found[name] = in_order(entries[name], _ranges(heads, entries[name].shape[0]))
        for sidecar in layer.sidecars if layer is not None else ():
            moved = _sidecar(sidecar, entries[sidecar], layer, heads)
            if isinstance(moved, Offence):
                offences.append(moved)
            elif moved is not None:
                found[sidecar] = moved
    return found, offences


def _ranges(heads: Heads, rows: int) -> Iterator[tuple[int, int]]:
    """All q, all k, all v; then what padding follows."""
    for third in range(3):
        for head in range(heads.count):
            group = 3 * head + third
            yield group * heads.width, (group + 1) * heads.width
    if rows > heads.rows:
        yield heads.rows, rows


def _sidecar(name: str, entry: StoredTensor, layer: QuantLayer | None, heads: Heads) -> StoredTensor | Offence | None:
    """None: holds for all rows alike."""
    leaf = name.rpartition(".")[2]
    form = layer.marker.format if layer is not None else ""
    if leaf in UNTOUCHED or entry.shape in ((), (1,)):
        return None
    if leaf == "weight_scale" and form in TILED:
        if heads.width % TILE_ROWS:
            told = f"has tiles of {TILE_ROWS} rows, which interleaved heads of {heads.width} rows don't fill"
            return Offence(name, told, f"contiguous q, k and v, or heads of a multiple of {TILE_ROWS} rows")
        return in_order(entry, _ranges(heads, entry.shape[0]))
    if form == "awq_w4a16" or leaf == "weight_correction" or entry.shape[0] < heads.rows:
        return Offence(name, f"of {form} can't be put in order", "contiguous q, k and v")
    return in_order(entry, _ranges(heads, entry.shape[0]))
