"""The quantised layers of a file: which stored tensors belong to which, and the shapes the model sees.

Fed by `file` with raw entries and markers. It separates the model's own tensors (`blocks.0.mlp.fc1.weight`) from what
only the storage needs (`.weight_scale`, `.comfy_quant`, ...), gives every weight its logical shape, and reports layers
whose storage contradicts their marker, has none, or is of an unknown format. No tensor is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.formats import FORMATS, LEGAL, Extent, Format, Shape, Sidecar, rotations
from h3runtime.checkpoint.markers import SUFFIX, Marker
from h3runtime.errors import Offence

TELLTALES = (".weight_scale", ".weight_scale_2", ".scale_weight", ".weight_s_rel", ".weight_s_channel", ".weight_zeros")
"""Names that exist beside quantised weights only (checkpoint-formats §2.5)."""

SHAPES_SHOWN = 4
"""Legal shapes that an error lists."""


@dataclass(frozen=True, slots=True)
class QuantLayer:
    """One marked layer: its marker, logical [N, K], and the stored names of its sidecars that are there."""

    name: str
    marker: Marker
    shape: tuple[int, int]
    sidecars: tuple[str, ...]

    @property
    def format(self) -> Format:
        return FORMATS[self.marker.format]

    @property
    def kind(self) -> str:
        """The storage in a word: `nvfp4`, `int8_convrot`, `fp8_scaled`, ..."""
        rotated = self.format.rotation == "optional" and self.marker.convrot is not None
        return f"{self.format.short}_convrot" if rotated else self.format.short

    def fits(self, wanted: Shape) -> bool:
        """Whether it can fill a weight [N, K]: that shape, or without `orig_shape` one that is padded to the same."""
        if self.shape == wanted:
            return True
        padding = self.marker.shape is None and len(wanted) == 2
        return padding and self.format.padded(wanted) == self.format.padded(self.shape)


def quantised_layers(
    entries: Mapping[str, StoredTensor], markers: Mapping[str, Marker]
) -> tuple[dict[str, QuantLayer], list[Offence]]:
    """Layers that have both a marker and a weight, and everything that is wrong with them."""
    offences = list(_unmarked(entries, markers))
    layers: dict[str, QuantLayer] = {}
    for name, marker in markers.items():
        weight = entries.get(f"{name}.weight")
        if weight is None:
            continue
        wrong = list(_judge(name, marker, weight, entries))
        offences += wrong
        if not wrong:
            layers[name] = _layer(name, marker, weight, entries)
    return layers, offences


def model_shapes(entries: Mapping[str, StoredTensor], layers: Mapping[str, QuantLayer]) -> dict[str, Shape]:
    """The shapes a model is built from: logical ones for quantised weights, no sidecars, no markers."""
    hidden = {s for layer in layers.values() for s in layer.sidecars}
    logical = {f"{layer.name}.weight": layer.shape for layer in layers.values()}
    return {n: logical.get(n, e.shape) for n, e in entries.items() if n not in hidden and not n.endswith(SUFFIX)}


def _layer(name: str, marker: Marker, weight: StoredTensor, entries: Mapping[str, StoredTensor]) -> QuantLayer:
    form = FORMATS[marker.format]
    sidecars = (f"{name}.{sidecar.leaf}" for sidecar in form.sidecars)
    shape = marker.shape or _logical(form, weight.shape, entries.get(f"{name}.bias"))
    return QuantLayer(name, marker, shape, tuple(s for s in sidecars if s in entries))


def _logical(form: Format, stored: Shape, bias: StoredTensor | None) -> tuple[int, int]:
    """[N, K] as far as the file tells without `orig_shape`: a bias tells N, the rest of the padding only the model."""
    rows, columns = stored[0], stored[1] * form.per_byte
    if bias is not None and len(bias.shape) == 1 and form.padded((bias.shape[0], columns))[0] == rows:
        rows = bias.shape[0]
    return rows, columns


def _unmarked(entries: Mapping[str, StoredTensor], markers: Mapping[str, Marker]) -> Iterator[Offence]:
    """Quantised storage that nothing describes: loading it as plain numbers would be silently wrong (G8)."""
    told: set[str] = set()
    for name, entry in entries.items():
        layer, _, leaf = name.rpartition(".")
        if layer in markers or layer in told:
            continue
        packed = leaf == "weight" and len(entry.shape) == 2 and entry.dtype in (torch.uint8, torch.int8)
        if packed or name.endswith(TELLTALES):
            told.add(layer)
            yield Offence(
                f"{layer}.weight", "is quantised, but the file has no marker that says how", "a .comfy_quant tensor"
            )


def _judge(name: str, marker: Marker, weight: StoredTensor, entries: Mapping[str, StoredTensor]) -> Iterator[Offence]:
    """Everything wrong with one layer. Shapes are judged only where the weight's own says what they should be."""
    form = FORMATS.get(marker.format)
    if form is None:
        yield Offence(name, f"is stored as {marker.label}, which isn't supported", LEGAL)
        return
    wrong = list(_judge_weight(form, marker, weight))
    yield from wrong
    extent = None if wrong else form.extent(weight.shape, marker.group)
    for sidecar in form.sidecars:
        yield from _judge_sidecar(f"{name}.{sidecar.leaf}", sidecar, extent, entries)


def _judge_weight(form: Format, marker: Marker, weight: StoredTensor) -> Iterator[Offence]:
    if weight.dtype not in form.weight:
        yield _dtype_of(weight, form.weight)
    if len(weight.shape) != 2 or 0 in weight.shape:
        yield Offence(weight.name, f"has shape {list(weight.shape)}", "two dimensions, none empty")
    elif weight.dtype in form.weight:
        yield from _judge_extent(form, marker, weight)


def _judge_extent(form: Format, marker: Marker, weight: StoredTensor) -> Iterator[Offence]:
    found = form.extent(weight.shape, marker.group)
    wanted = form.padded(marker.shape or (found.rows, found.columns))
    if wanted != (found.rows, found.columns):
        why = "for `orig_shape`" if marker.shape else f"multiples of {list(form.tile)} in values"
        yield _shape_of(weight, f"{[wanted[0], wanted[1] // form.per_byte]}, {why}")
    if found.columns % form.multiple:
        yield Offence(weight.name, f"has {found.columns} columns", f"a multiple of {form.multiple}")
    layer, across = weight.name.removesuffix(".weight"), f"for {found.columns} columns"
    if found.group and found.columns % found.group:
        yield Offence(layer + SUFFIX, f"has group_size {found.group} {across}", "a number that divides them")
    sizes = rotations(found.columns)
    if marker.convrot is not None and marker.convrot not in sizes:
        legal = ", ".join(map(str, sizes)) or "none: no power of 4 divides them"
        yield Offence(layer + SUFFIX, f"has convrot_groupsize {marker.convrot} {across}", legal)


def _judge_sidecar(
    name: str, sidecar: Sidecar, extent: Extent | None, entries: Mapping[str, StoredTensor]
) -> Iterator[Offence]:
    entry = entries.get(name)
    if entry is None:
        if sidecar.required:
            yield Offence(name, "is missing")
        return
    if entry.dtype not in sidecar.dtypes:
        yield _dtype_of(entry, sidecar.dtypes)
    if extent is not None and entry.shape not in (shapes := sidecar.shapes(extent)):
        yield _shape_of(entry, " or ".join(str(list(s)) for s in shapes[:SHAPES_SHOWN]))


def _dtype_of(entry: StoredTensor, legal: tuple[torch.dtype, ...]) -> Offence:
    return Offence(entry.name, f"has dtype {short(entry.dtype)}", " or ".join(map(short, legal)))


def _shape_of(entry: StoredTensor, legal: str) -> Offence:
    return Offence(entry.name, f"has shape {list(entry.shape)}", legal)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
