"""How a file stores its tensors: dtypes, quantised layers, markers; and packing weights that way.

    logical weights {name: fp32 tensor} + Storage -> stored tensors {name or sidecar: tensor}, ready for `writer`

A `Scheme` is one way to store one layer, a `Storage` says which layers of a file have which. The published files' ones
are data in `published`. Markers are the exact bytes of the published files (checkpoint-formats §2.5). Fed by
`made_files` and the tests; the arithmetic of packing is `quant`'s. It makes no values but scales.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch

from h3runtime.checkpoint.markers import METADATA_KEY, SUFFIX
from h3runtime.checkpoint.writer import Described
from h3runtime.quant import fp8, int8, mxfp8, nvfp4

Format = Literal["nvfp4", "int8_tensorwise", "float8_e4m3fn", "float8_e5m2", "mxfp8"]
INPUT_SCALE = 32.0 / 448.0
"""Made-up static activation scale of an FP8 layer: activations up to 32 don't saturate (checkpoint-formats §4.3)."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to store a layer.

    convrot: group of the rotation along K, or None. full_precision: the marker forbids quantising the activation.
    input_scale: there is a static activation scale. pre_quant: there is an AWQ `pre_quant_scale` (BF16).
    """

    format: Format
    convrot: int | None = None
    full_precision: bool = False
    input_scale: bool = False
    pre_quant: bool = False

    def described(self) -> dict[str, object]:
        """The marker as an object, keys in the published order."""
        told: dict[str, object] = {"format": self.format}
        if self.convrot is not None:
            told |= {"convrot": True, "convrot_groupsize": self.convrot}
        if self.full_precision:
            told["full_precision_matrix_mult"] = True
        return told

    def marker(self) -> bytes:
        """The bytes of the `.comfy_quant` tensor."""
        return json.dumps(self.described()).encode()


NVFP4 = Scheme("nvfp4")
INT8_ROWS = Scheme("int8_tensorwise")
INT8_CONVROT = Scheme("int8_tensorwise", convrot=256)


@dataclass(frozen=True, slots=True)
class Storage:
    """dtype: of whatever nothing else is said about. dtypes, layers: (pattern, how), first match wins.

    told_by: whether each quantised layer has a marker tensor or the file's metadata describes them all.
    metadata: the header's `__metadata__` apart from that.
    """

    dtype: torch.dtype
    dtypes: tuple[tuple[str, torch.dtype], ...] = ()
    layers: tuple[tuple[str, Scheme], ...] = ()
    told_by: Literal["tensors", "metadata"] = "tensors"
    metadata: tuple[tuple[str, str], ...] = ()

    def dtype_of(self, name: str) -> torch.dtype:
        return next((dtype for pattern, dtype in self.dtypes if fnmatchcase(name, pattern)), self.dtype)

    def scheme_of(self, name: str, shape: tuple[int, ...]) -> Scheme | None:
        """How the tensor called `name` is quantised, or None; only matrices called `.weight` can be."""
        layer = name.removesuffix(".weight")
        if layer == name or len(shape) != 2:
            return None
        return next((scheme for pattern, scheme in self.layers if fnmatchcase(layer, pattern)), None)

    def file_metadata(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """The whole `__metadata__` of a file of these tensors; empty if it has none."""
        told = dict(self.metadata)
        if self.told_by == "metadata":
            schemes = {name.removesuffix(".weight"): self.scheme_of(name, shape) for name, shape in shapes.items()}
            layers = {layer: scheme.described() for layer, scheme in schemes.items() if scheme}
            told[METADATA_KEY] = json.dumps({"format_version": "1.0", "layers": layers})
        return told


def stored_layout(shapes: Mapping[str, tuple[int, ...]], storage: Storage) -> dict[str, Described]:
    """dtype and shape of every stored tensor, without making any."""
    return {k: v for name, shape in shapes.items() for k, v in layout_of(name, shape, storage)}


def layout_of(name: str, shape: tuple[int, ...], storage: Storage) -> Iterator[tuple[str, Described]]:
    """The stored tensors of one logical tensor: itself, and its sidecars and marker where it is quantised."""
    scheme = storage.scheme_of(name, shape)
    if scheme is None:
        yield name, (storage.dtype_of(name), shape)
        return
    layer, (rows, columns) = name.removesuffix(".weight"), shape
    yield from ((f"{layer}.{leaf}", stored) for leaf, stored in _CODES[scheme.format]((rows, columns)).items())
    if scheme.input_scale:
        yield f"{layer}.input_scale", (torch.float32, ())
    if scheme.pre_quant:
        yield f"{layer}.pre_quant_scale", (torch.bfloat16, (columns,))
    if storage.told_by == "tensors":
        yield layer + SUFFIX, (torch.uint8, (len(scheme.marker()),))


Shape = tuple[int, int]


def _nvfp4_codes(shape: Shape) -> dict[str, Described]:
    return {
        "weight": (torch.uint8, nvfp4.packed_shape(shape)),
        "weight_scale": (torch.float8_e4m3fn, nvfp4.scale_shape(shape)),
        "weight_scale_2": (torch.float32, ()),
    }


def _int8_codes(shape: Shape) -> dict[str, Described]:
    return {"weight": (torch.int8, shape), "weight_scale": (torch.float32, (shape[0], 1))}


def _mxfp8_codes(shape: Shape) -> dict[str, Described]:
    return {
        "weight": (torch.float8_e4m3fn, mxfp8.packed_shape(shape)),
        "weight_scale": (torch.uint8, mxfp8.scale_shape(shape)),
    }


_CODES: Mapping[Format, Callable[[Shape], dict[str, Described]]] = {
    "nvfp4": _nvfp4_codes,
    "int8_tensorwise": _int8_codes,
    "float8_e4m3fn": lambda shape: {"weight": (torch.float8_e4m3fn, shape), "weight_scale": (torch.float32, ())},
    "float8_e5m2": lambda shape: {"weight": (torch.float8_e5m2, shape), "weight_scale": (torch.float32, ())},
    "mxfp8": _mxfp8_codes,
}


def pack(
    weights: Mapping[str, torch.Tensor], storage: Storage, pre_quant: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Logical fp32 weights -> stored tensors. `pre_quant`: layer -> [K] scale, divided out of the weight, else 1."""
    scales = pre_quant or {}
    return {k: v for name, weight in weights.items() for k, v in _pack(name, weight, storage, scales)}


def _pack(
    name: str, weight: torch.Tensor, storage: Storage, scales: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    scheme = storage.scheme_of(name, tuple(weight.shape))
    if scheme is None:
        yield name, weight.to(storage.dtype_of(name))
        return
    layer = name.removesuffix(".weight")
    if scheme.pre_quant:
        scale = scales.get(layer, torch.ones(weight.shape[1])).to(torch.bfloat16)
        weight = weight / scale.float()
        yield f"{layer}.pre_quant_scale", scale
    yield from ((f"{layer}.{leaf}", tensor) for leaf, tensor in _quantised(weight, scheme).items())
    if scheme.input_scale:
        yield f"{layer}.input_scale", torch.tensor(INPUT_SCALE)
    if storage.told_by == "tensors":
        yield layer + SUFFIX, marker_tensor(scheme.marker())


def _quantised(weight: torch.Tensor, scheme: Scheme) -> dict[str, torch.Tensor]:
    if scheme.format == "nvfp4":
        four = nvfp4.quantize(weight)
        return {"weight": four.codes, "weight_scale": four.block_scale, "weight_scale_2": four.tensor_scale}
    if scheme.format == "int8_tensorwise":
        rows = int8.quantize(weight, convrot=scheme.convrot)
        return {"weight": rows.codes, "weight_scale": rows.scale}
    if scheme.format == "mxfp8":
        micro = mxfp8.quantize(weight)
        return {"weight": micro.codes, "weight_scale": micro.block_scale}
    eight = fp8.quantize(weight, getattr(torch, scheme.format))
    return {"weight": eight.codes, "weight_scale": eight.scale}


def marker_tensor(text: bytes) -> torch.Tensor:
    return torch.tensor(list(text), dtype=torch.uint8)
