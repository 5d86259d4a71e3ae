"""What a checkpoint holds, as plain values for people and scripts: formats, scales, forms, a census of its dtypes.

    describe        a component of ours, judged by `CheckpointFile`
    describe_other  a sound safetensors file of another kind that its names tell: named, and counted

Fed by `engine.inspection`, which adds what needs a model or a device; shown by the command line. Of the data only a few
alpha values of adapters are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.families import (
    H3,
    LEGAL,
    SEPARATE_QKV,
    TITLES,
    UNKNOWN,
    Component,
    adaln_form,
    foreign_family,
    separate_tensors,
)
from h3runtime.checkpoint.file import CheckpointFile, common_prefix
from h3runtime.checkpoint.header import DTYPES, FILE
from h3runtime.checkpoint.layers import QuantLayer
from h3runtime.checkpoint.load import PLAIN_NAMES, storage_format
from h3runtime.checkpoint.lora.contracts import contract_of
from h3runtime.checkpoint.lora.layout import layout_of
from h3runtime.checkpoint.lora.report import LoraReport, read_lora
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import read_stored
from h3runtime.checkpoint.partition import partition_hint
from h3runtime.checkpoint.qkv_order import QkvDecision
from h3runtime.checkpoint.sources import Source
from h3runtime.checkpoint.tensor_file import TensorFile, checkpoint_error
from h3runtime.errors import CheckpointError, Offence

NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")

Arrangement = Literal["scalar", "per_row", "swizzled", "per_group", "per_column", "codebook"]
"""swizzled: in tiles of 128 rows by 4 groups (checkpoint-formats §3). per_group: rows by groups, or the transpose."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A sidecar of quantised layers: dtype as safetensors calls it, shape of the first layer's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: Arrangement


@dataclass(frozen=True, slots=True)
class Group:
    """Linear layers that are called and stored alike. layers: their name, `*` for numbers. shape: logical [N, K] of the
    first. bytes: weights and scales of all of them."""

    layers: str
    count: int
    format: str
    shape: tuple[int, ...]
    bytes: int
    convrot_groupsize: int | None = None
    full_precision: bool = False
    scales: tuple[Scale, ...] = ()


@dataclass(frozen=True, slots=True)
class Tally:
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the checkpoint."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Adaln:
    """form: `pruned` (curve) or `full`. grid, rank: of the curve. width: of the timestep vector that AdaLN reads."""

    form: Literal["pruned", "full"]
    grid: int | None
    rank: int | None
    width: int | None


@dataclass(frozen=True, slots=True)
class FileReport:
    """family, component: as in `families`. reason: why the file can't be loaded, None where it can.

    partition_hint: `fl2va` or `ref2va` by the file's name, which is all there is (checkpoint-formats §2.3).
    layout, prefix, qkv, synthetic, model, warnings: as in `CheckpointFile`. format: all in a word. formats: by layer
    group. dtypes: of the stored tensors. tensors, data_bytes: of this component. bytes: of the files.
    """

    file: str
    family: str
    component: str
    title: str
    reason: str | None
    partition_hint: str | None
    layout: str
    prefix: str
    format: str
    formats: tuple[Group, ...]
    dtypes: Mapping[str, Tally]
    tensors: int
    data_bytes: int
    bytes: int
    parts: tuple[Part, ...]
    synthetic: bool
    model: str | None
    metadata: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    adaln: Adaln | None = None
    qkv: QkvDecision | None = None
    gate_compress: bool = False
    head_bank: int | None = None
    lora: LoraReport | None = None


def describe(file: CheckpointFile, component: Component) -> FileReport:
    """A component that can be loaded."""
    transformer = component == "transformer"
    return FileReport(
        file=file.path.name,
        family=H3,
        component=component,
        title=TITLES[component],
        reason=None,
        partition_hint=partition_hint(file.path) if transformer else None,
        layout=file.layout,
        prefix=file.prefix,
        format=storage_format(file),
        formats=tuple(_groups(file)),
        dtypes=census(file.entries.values()),
        tensors=len(file.entries),
        data_bytes=file.data_bytes,
        bytes=file.size,
        parts=_parts(file.parts),
        synthetic=file.synthetic,
        model=file.model,
        metadata=file.metadata,
        warnings=file.warnings,
        adaln=_adaln(file) if transformer else None,
        qkv=file.qkv,
        gate_compress="blocks.0.attn.to_gate_compress.weight" in file.shapes,
        head_bank=_head_bank(file) if transformer else None,
    )


def describe_other(source: Source) -> FileReport:
    """A sound safetensors file, or a folder of them, that is no component of ours. CheckpointError for one that is
    nothing we know, and for a transformer of ours that can't be loaded."""
    prefix = common_prefix(source.entries)
    entries = {name.removeprefix(prefix): entry for name, entry in source.entries.items()}
    family = foreign_family(entries) or UNKNOWN
    if family in (UNKNOWN, SEPARATE_QKV):
        looks = Offence(FILE, f"looks like {family.title}" if entries else "has no tensors", LEGAL)
        raise checkpoint_error(source.path, [looks, *separate_tensors(entries, family)])
    lora, reason = (
        _lora(source, prefix, family.title) if family.component == "lora" else (None, _unloaded(family.title))
    )
    tally = census(source.entries.values())
    return FileReport(
        file=source.path.name,
        family=family.name if lora is None else lora.family,
        component=family.component,
        title=family.title,
        reason=reason,
        partition_hint=partition_hint(source.path) if family.name == H3 else None,
        layout="comfyui" if lora is None else lora.naming,
        prefix=prefix if lora is None else lora.prefix,
        format=_main_format(tally),
        formats=(),
        dtypes=tally,
        tensors=len(source.entries),
        data_bytes=sum(entry.nbytes for entry in source.entries.values()),
        bytes=sum(part.size for part in source.parts),
        parts=_parts(source.parts),
        synthetic=False,
        model=None,
        metadata=source.metadata,
        warnings=(*source.warnings, *(lora.odd if lora is not None else ())),
        lora=lora,
    )


def _unloaded(title: str) -> str:
    return f"looks like {title}, which this version doesn't load"


def _lora(source: Source, prefix: str, title: str) -> tuple[LoraReport, str | None]:
    """And why it can't be applied to any transformer of ours, None if it can."""
    found = read_lora(source, prefix)
    if found.family != H3:
        return found, _unloaded(title)
    try:
        stored = read_stored(source)
    except CheckpointError as error:
        return found, error.message
    contract = contract_of(stored, source.path.name.removesuffix(".safetensors"))
    return replace(found, layout=layout_of(stored), scale=scales_of(stored).ratio, contract=contract), None


def census(entries: Iterable[StoredTensor]) -> dict[str, Tally]:
    """safetensors' dtype -> tensors and bytes, most bytes first."""
    found: dict[str, Tally] = {}
    for entry in entries:
        before = found.get(NAMES[entry.dtype], Tally(0, 0))
        found[NAMES[entry.dtype]] = Tally(before.tensors + 1, before.bytes + entry.nbytes)
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes))


def _main_format(tally: Mapping[str, Tally]) -> str:
    largest = next(iter(tally), "")
    return _plain(DTYPES[largest]) if largest else "empty"


def _plain(dtype: torch.dtype) -> str:
    return PLAIN_NAMES.get(dtype, NAMES[dtype].lower())


def _parts(parts: Iterable[TensorFile]) -> tuple[Part, ...]:
    return tuple(Part(part.path.name, part.size) for part in parts)


def _adaln(file: CheckpointFile) -> Adaln:
    table = file.shapes.get("adaln_t_table", ())
    width = file.shapes.get("final_layer.adaln_proj.linear.weight", ())[-1:]
    grid, rank = table if len(table) == 2 else (None, None)
    return Adaln(adaln_form(file.shapes), grid, rank, width[0] if width else None)


def _head_bank(file: CheckpointFile) -> int:
    """Stacked output heads (checkpoint-formats §2.4)."""
    head, patch = (file.shapes.get(name, ()) for name in ("final_layer.video_out.weight", "video_patch_proj.weight"))
    return head[0] // patch[1] if len(head) == len(patch) == 2 and patch[1] else 1


def _groups(file: CheckpointFile) -> Iterator[Group]:
    """In the order of the file's names."""
    members: dict[tuple[object, ...], list[str]] = {}
    for name, shape in file.shapes.items():
        if name.endswith(".weight") and len(shape) == 2:
            members.setdefault(_kind(name, file), []).append(name)
    for names in members.values():
        yield _group(names, file)


def _kind(name: str, file: CheckpointFile) -> tuple[object, ...]:
    """What the members of a group have in common."""
    layer = file.layers.get(name.removesuffix(".weight"))
    pattern = NUMBER.sub("*", name)
    if layer is None:
        return pattern, file.dtypes[name]
    sidecars = tuple((_leaf(s), file.entries[s].dtype, _arrangement(s, layer, file)) for s in layer.sidecars)
    return pattern, layer.marker.format, layer.marker.convrot, layer.marker.full_precision, sidecars


def _group(names: list[str], file: CheckpointFile) -> Group:
    first = file.layers.get(names[0].removesuffix(".weight"))
    layers = [file.layers.get(name.removesuffix(".weight")) for name in names]
    stored = [*names, *(s for layer in layers if layer is not None for s in layer.sidecars)]
    return Group(
        layers=NUMBER.sub("*", names[0]).removesuffix(".weight"),
        count=len(names),
        format=first.kind if first is not None else _plain(file.dtypes[names[0]]),
        shape=file.shapes[names[0]],
        bytes=sum(file.entries[name].nbytes for name in stored),
        convrot_groupsize=first.marker.convrot if first is not None else None,
        full_precision=first is not None and first.marker.full_precision,
        scales=tuple(_scale(s, first, file) for s in first.sidecars) if first is not None else (),
    )


def _scale(name: str, layer: QuantLayer, file: CheckpointFile) -> Scale:
    entry = file.entries[name]
    return Scale(_leaf(name), NAMES[entry.dtype], entry.shape, _arrangement(name, layer, file))


def _arrangement(name: str, layer: QuantLayer, file: CheckpointFile) -> Arrangement:
    leaf, shape = _leaf(name), file.entries[name].shape
    if shape in ((), (1,)):
        return "scalar"
    if leaf == "weight_codebook":
        return "codebook"
    if leaf == "pre_quant_scale":
        return "per_column"
    if leaf == "weight_scale" and layer.marker.format in ("nvfp4", "mxfp8"):
        return "swizzled"
    return "per_row" if len(shape) == 1 or shape[1:] == (1,) else "per_group"


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
