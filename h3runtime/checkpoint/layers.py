"""The quantised layers of a file: which stored tensors belong to which, and the shapes the model sees.

Fed by `file` with raw entries and markers. It separates the model's own tensors (`blocks.0.mlp.fc1.weight`) from what
only the storage needs (`.weight_scale`, `.comfy_quant`, ...), gives every weight its logical shape, and reports layers
whose storage contradicts their marker, has none, or is of a format that can't be loaded yet. No tensor is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.markers import SUFFIX, Marker
from h3runtime.errors import Offence
from h3runtime.quant.nvfp4 import packed_shape, scale_shape

NVFP4 = "nvfp4"
INT8_ROWS = "int8_tensorwise"
SUPPORTED = (NVFP4, INT8_ROWS)
SIDECARS = {
    NVFP4: ("weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale"),
    INT8_ROWS: ("weight_scale",),
}
TELLTALES = (".weight_scale", ".weight_scale_2", ".scale_weight", ".weight_s_rel", ".weight_s_channel", ".weight_zeros")
"""Names that exist beside quantised weights only (checkpoint-formats §2.5)."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class QuantLayer:
    """One marked layer: its marker, logical [N, K], and the stored names of its sidecars that are there."""

    name: str
    marker: Marker
    shape: tuple[int, int]
    sidecars: tuple[str, ...]


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
        wrong = _refusal(name, marker) or _misshapen(name, marker, entries)
        if wrong is not None:
            offences.append(wrong)
            continue
        sidecars = (f"{name}.{s}" for s in SIDECARS[marker.format])
        layers[name] = QuantLayer(name, marker, _logical(marker, weight), tuple(s for s in sidecars if s in entries))
    return layers, offences


def model_shapes(entries: Mapping[str, StoredTensor], layers: Mapping[str, QuantLayer]) -> dict[str, tuple[int, ...]]:
    """The shapes a model is built from: logical ones for quantised weights, no sidecars, no markers."""
    hidden = {s for layer in layers.values() for s in layer.sidecars}
    logical = {f"{layer.name}.weight": layer.shape for layer in layers.values()}
    return {n: logical.get(n, e.shape) for n, e in entries.items() if n not in hidden and not n.endswith(SUFFIX)}


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
        elif leaf == "scaled_fp8" or name == "scaled_fp8":
            yield Offence(name, "marks the legacy fp8 form, which isn't supported", ", ".join(("plain", *SUPPORTED)))


def _refusal(name: str, marker: Marker) -> Offence | None:
    if marker.format in SUPPORTED and not marker.convrot:
        return None
    return Offence(name, f"is stored as {marker.label}, which isn't supported", ", ".join(("plain", *SUPPORTED)))


def _logical(marker: Marker, weight: StoredTensor) -> tuple[int, int]:
    """[N, K]. Rows and columns that packing padded are known from `orig_shape` only, else from the model."""
    if marker.shape is not None:
        return marker.shape
    rows, columns = weight.shape
    return rows, columns * 2 if marker.format == NVFP4 else columns


def _misshapen(name: str, marker: Marker, entries: Mapping[str, StoredTensor]) -> Offence | None:
    """The first sidecar that doesn't fit its weight; later ones usually follow from it."""
    weight = entries[f"{name}.weight"]
    if len(weight.shape) != 2:
        return Offence(weight.name, f"has shape {list(weight.shape)}", "two dimensions")
    expected = _nvfp4_storage(name, weight) if marker.format == NVFP4 else _int8_storage(name, weight)
    if marker.shape is not None and marker.format == NVFP4 and packed_shape(marker.shape) != weight.shape:
        return Offence(
            weight.name, f"has shape {list(weight.shape)}", f"{list(packed_shape(marker.shape))} for `orig_shape`"
        )
    for stored, (dtypes, shapes, required) in expected.items():
        entry = entries.get(stored)
        if entry is None:
            if required:
                return Offence(stored, "is missing")
        elif entry.dtype not in dtypes:
            return Offence(stored, f"has dtype {short(entry.dtype)}", " or ".join(short(d) for d in dtypes))
        elif entry.shape not in shapes:
            return Offence(stored, f"has shape {list(entry.shape)}", " or ".join(str(list(s)) for s in shapes))
    return None


Storage = dict[str, tuple[tuple[torch.dtype, ...], tuple[tuple[int, ...], ...], bool]]
"""stored name -> allowed dtypes, allowed shapes, whether it must be there."""


def _nvfp4_storage(name: str, weight: StoredTensor) -> Storage:
    rows, half = weight.shape
    scalar: tuple[tuple[int, ...], ...] = ((), (1,))
    return {
        f"{name}.weight": ((torch.uint8,), (((rows + 15) // 16 * 16, (half + 7) // 8 * 8),), True),
        f"{name}.weight_scale": ((torch.float8_e4m3fn, torch.uint8), (scale_shape((rows, half * 2)),), True),
        f"{name}.weight_scale_2": ((torch.float32,), scalar, True),
        f"{name}.input_scale": ((torch.float32,), scalar, False),
        f"{name}.pre_quant_scale": (FLOATS, tuple((half * 2 - pad,) for pad in range(16)), False),
    }


def _int8_storage(name: str, weight: StoredTensor) -> Storage:
    rows = weight.shape[0]
    return {
        f"{name}.weight": ((torch.int8,), (weight.shape,), True),
        f"{name}.weight_scale": ((torch.float32,), ((rows, 1), (rows,), (), (1,)), True),
    }


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
