"""A quantised layer's tensors as one `StoredWeight`: bytes seen as the right dtype, scales judged and in one shape.

    QuantLayer + {leaf: tensor} + [N, K] -> Nvfp4Weight, Int8Weight, ...        nothing is decoded or copied but scales

Fed by `load` once all tensors of a layer are there; the result goes to a linear backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.checkpoint import formats
from h3runtime.checkpoint.formats import Sidecar
from h3runtime.checkpoint.layers import QuantLayer
from h3runtime.errors import Offence
from h3runtime.quant.stored import (
    AsymInt4Weight,
    AwqInt4Weight,
    ConvrotInt4Weight,
    Fp8Weight,
    Int8Weight,
    Mxfp8Weight,
    Nvfp4Weight,
    StoredWeight,
)

NAN_EXPONENT = 255
"""E8M0's only NaN."""
E4M3_NAN = 0x7F
"""E4M3's NaN; it has no infinity, and every byte above has the sign."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One layer's tensors by leaf (`weight`, `weight_scale`, ...), its logical [N, K] and its bias."""

    layer: QuantLayer
    tensors: Mapping[str, torch.Tensor]
    shape: tuple[int, int]
    bias: torch.Tensor | None = None

    @property
    def full_precision(self) -> bool:
        return self.layer.marker.full_precision

    def scalar(self, leaf: str) -> torch.Tensor | None:
        """fp32 []."""
        found = self.tensors.get(leaf)
        return None if found is None else found.reshape(())

    @property
    def pre_quant_scale(self) -> torch.Tensor | None:
        """[K]; stored over the padding too, or not."""
        found = self.tensors.get("pre_quant_scale")
        return None if found is None else found[: self.shape[1]]


def assemble(
    layer: QuantLayer, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int], bias: torch.Tensor | None = None
) -> StoredWeight:
    """`tensors` by stored name, as judged by `layers`; `shape` is the model's [N, K]."""
    sidecars = {sidecar.leaf: _seen(tensors[name], sidecar) for name, sidecar in _stored(layer) if name in tensors}
    weight = tensors[f"{layer.name}.weight"].view(layer.format.codes)
    return MAKERS[layer.format.name](Parts(layer, {"weight": weight, **sidecars}, shape, bias))


def faulty_scales(layer: QuantLayer, tensors: Mapping[str, torch.Tensor]) -> Iterator[Offence]:
    """Sidecars with a NaN, an infinity, or below zero where that can't be: each would spoil its layer in silence."""
    for name, sidecar in _stored(layer):
        if name in tensors:
            yield from _faults(name, sidecar, _seen(tensors[name], sidecar))


def _stored(layer: QuantLayer) -> Iterator[tuple[str, Sidecar]]:
    for sidecar in layer.format.sidecars:
        yield f"{layer.name}.{sidecar.leaf}", sidecar


def _seen(tensor: torch.Tensor, sidecar: Sidecar) -> torch.Tensor:
    """Raw bytes as what they are (G14)."""
    return tensor.view(sidecar.bytes_as) if sidecar.bytes_as is not None and tensor.itemsize == 1 else tensor


def _faults(name: str, sidecar: Sidecar, tensor: torch.Tensor) -> Iterator[Offence]:
    if tensor.dtype is torch.float8_e4m3fn and tensor.numel() and int(tensor.view(torch.uint8).max()) < E4M3_NAN:
        # One pass over the bytes: neither NaN nor a sign among them. A full-size file has gigabytes of these.
        return
    if not tensor.is_floating_point():
        if (tensor == NAN_EXPONENT).any():
            yield Offence(name, "isn't finite")
        return
    values = tensor.float()
    if not torch.isfinite(values).all():
        yield Offence(name, "isn't finite")
    elif not sidecar.signed and (values < 0).any():
        yield Offence(name, "is negative")


def _nvfp4(parts: Parts) -> StoredWeight:
    tensor_scale = parts.scalar("weight_scale_2")
    assert tensor_scale is not None
    return Nvfp4Weight(
        codes=parts.tensors["weight"],
        block_scale=parts.tensors["weight_scale"],
        tensor_scale=tensor_scale,
        shape=parts.shape,
        bias=parts.bias,
        pre_quant_scale=parts.pre_quant_scale,
        input_scale=parts.scalar("input_scale"),
        full_precision=parts.full_precision,
    )


def _int8(parts: Parts) -> Int8Weight:
    codes, scale = parts.tensors["weight"], parts.tensors["weight_scale"]
    return Int8Weight(
        codes=codes,
        scale=scale.reshape(-1, 1).expand(codes.shape[0], 1).contiguous(),
        bias=parts.bias,
        convrot=parts.layer.marker.convrot,
        pre_quant_scale=parts.pre_quant_scale,
        full_precision=parts.full_precision,
    )


def _fp8(parts: Parts) -> StoredWeight:
    scale = parts.scalar("weight_scale")
    assert scale is not None
    return Fp8Weight(
        codes=parts.tensors["weight"],
        scale=scale,
        bias=parts.bias,
        pre_quant_scale=parts.pre_quant_scale,
        input_scale=parts.scalar("input_scale"),
        full_precision=parts.full_precision,
    )


def _mxfp8(parts: Parts) -> StoredWeight:
    return Mxfp8Weight(
        codes=parts.tensors["weight"],
        block_scale=parts.tensors["weight_scale"],
        shape=parts.shape,
        bias=parts.bias,
        pre_quant_scale=parts.pre_quant_scale,
        full_precision=parts.full_precision,
    )


def _convrot_w4a4(parts: Parts) -> StoredWeight:
    assert parts.layer.marker.convrot is not None
    return ConvrotInt4Weight(
        codes=parts.tensors["weight"],
        scale=parts.tensors["weight_scale"],
        convrot=parts.layer.marker.convrot,
        bias=parts.bias,
        full_precision=parts.full_precision,
    )


def _asym_w4a8(parts: Parts) -> StoredWeight:
    assert parts.layer.marker.convrot is not None
    return AsymInt4Weight(
        codes=parts.tensors["weight"],
        relative_scale=parts.tensors["weight_s_rel"],
        channel_scale=parts.tensors["weight_s_channel"],
        codebook=parts.tensors.get("weight_codebook"),
        correction=parts.tensors.get("weight_correction"),
        convrot=parts.layer.marker.convrot,
        bias=parts.bias,
        full_precision=parts.full_precision,
        group=parts.layer.marker.group or parts.layer.format.group,
    )


def _awq_w4a16(parts: Parts) -> StoredWeight:
    return AwqInt4Weight(
        codes=parts.tensors["weight"],
        scale=parts.tensors["weight_scale"],
        zeros=parts.tensors["weight_zeros"],
        bias=parts.bias,
        full_precision=parts.full_precision,
    )


MAKERS: Final[Mapping[str, Callable[[Parts], StoredWeight]]] = {
    formats.NVFP4.name: _nvfp4,
    formats.INT8.name: _int8,
    "float8_e4m3fn": _fp8,
    "float8_e5m2": _fp8,
    formats.MXFP8.name: _mxfp8,
    formats.CONVROT_W4A4.name: _convrot_w4a4,
    formats.ASYM_W4A8.name: _asym_w4a8,
    formats.AWQ_W4A16.name: _awq_w4a16,
}
