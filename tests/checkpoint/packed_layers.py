"""One linear in every published storage, packed here from `quant`: the stored tensors, the marker, the reference.

Independent of the storage that `synth` writes: a mistake there can't hide one in the loader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from h3runtime.quant import asym_w4a8, awq_w4a16, convrot_w4a4, fp8, int8, mxfp8, nvfp4
from h3runtime.quant.stored import PlainWeight, StoredWeight

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu


@dataclass(frozen=True)
class Packed:
    """tensors by leaf, the marker (None: a plain layer), what must come out of loading, and K's divisor."""

    tensors: Mapping[str, torch.Tensor]
    marker: Mapping[str, object] | None
    stored: StoredWeight

    def named(self, layer: str) -> dict[str, torch.Tensor]:
        """As in a file with marker tensors."""
        told = {} if self.marker is None else {f"{layer}.comfy_quant": text_tensor(json.dumps(self.marker))}
        return {f"{layer}.{leaf}": tensor for leaf, tensor in self.tensors.items()} | told


def text_tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _plain(weight: torch.Tensor) -> Packed:
    kept = weight.to(torch.bfloat16)
    return Packed({"weight": kept}, None, PlainWeight(kept))


def _bare_fp8(weight: torch.Tensor) -> Packed:
    kept = weight.to(E4M3)
    return Packed({"weight": kept}, None, PlainWeight(kept))


def _nvfp4(weight: torch.Tensor) -> Packed:
    q = nvfp4.quantize(weight)
    tensors = {"weight": q.codes, "weight_scale": q.block_scale, "weight_scale_2": q.tensor_scale}
    return Packed(tensors, {"format": "nvfp4"}, q)


def _nvfp4_raw(weight: torch.Tensor) -> Packed:
    """Scales as raw bytes, the tensor scale in one dimension, a static activation scale, the logical shape told."""
    packed = _nvfp4(weight)
    tensors = {
        **packed.tensors,
        "weight_scale": packed.tensors["weight_scale"].view(torch.uint8),
        "weight_scale_2": packed.tensors["weight_scale_2"].reshape(1),
        "input_scale": torch.tensor(0.5),
    }
    marker = {"format": "nvfp4", "orig_shape": list(weight.shape)}
    return Packed(tensors, marker, replace(packed.stored, input_scale=torch.tensor(0.5)))


def _nvfp4_awq(weight: torch.Tensor) -> Packed:
    scale = torch.linspace(0.5, 2, weight.shape[1]).to(torch.bfloat16)
    packed = _nvfp4(weight / scale.float())
    marker = {"format": "nvfp4", "full_precision_matrix_mult": True}
    stored = replace(packed.stored, pre_quant_scale=scale, full_precision=True)
    return Packed({**packed.tensors, "pre_quant_scale": scale}, marker, stored)


def _int8_rows(weight: torch.Tensor) -> Packed:
    q = int8.quantize(weight)
    return Packed({"weight": q.codes, "weight_scale": q.scale.reshape(-1)}, {"format": "int8_tensorwise"}, q)


def _int8_tensor(weight: torch.Tensor) -> Packed:
    scale = weight.abs().max() / 127
    codes = (weight / scale).round().to(torch.int8)
    stored = replace(int8.quantize(weight), codes=codes, scale=scale.expand(weight.shape[0], 1).contiguous())
    return Packed({"weight": codes, "weight_scale": scale}, {"format": "int8_tensorwise"}, stored)


def _int8_convrot(group: int) -> Callable[[torch.Tensor], Packed]:
    def pack(weight: torch.Tensor) -> Packed:
        q = int8.quantize(weight, convrot=group)
        marker = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": group}
        return Packed({"weight": q.codes, "weight_scale": q.scale}, marker, q)

    return pack


def _int8_nested(weight: torch.Tensor) -> Packed:
    packed = _int8_convrot(16)(weight)
    marker = {"format": "int8_tensorwise", "params": {"convrot": True, "convrot_groupsize": 16}, "per_row": True}
    return replace(packed, marker=marker)


def _fp8(weight: torch.Tensor) -> Packed:
    q = fp8.quantize(weight)
    tensors = {"weight": q.codes, "weight_scale": q.scale, "input_scale": torch.tensor([0.25])}
    return Packed(tensors, {"format": "float8_e4m3fn"}, replace(q, input_scale=torch.tensor(0.25)))


def _fp8_full_precision(weight: torch.Tensor) -> Packed:
    q = fp8.quantize(weight)
    marker = {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
    return Packed({"weight": q.codes, "weight_scale": q.scale}, marker, replace(q, full_precision=True))


def _fp8_e5m2(weight: torch.Tensor) -> Packed:
    """Codes as raw bytes, as older files have them."""
    q = fp8.quantize(weight, E5M2)
    tensors = {"weight": q.codes.view(torch.uint8), "weight_scale": q.scale.reshape(1)}
    return Packed(tensors, {"format": "float8_e5m2"}, q)


def _mxfp8(dtype: torch.dtype) -> Callable[[torch.Tensor], Packed]:
    def pack(weight: torch.Tensor) -> Packed:
        q = mxfp8.quantize(weight)
        return Packed({"weight": q.codes, "weight_scale": q.block_scale.view(dtype)}, {"format": "mxfp8"}, q)

    return pack


def _w4a4(weight: torch.Tensor) -> Packed:
    q = convrot_w4a4.quantize(weight, convrot=64)
    marker = {"format": "convrot_w4a4", "convrot_groupsize": 64, "quant_group_size": 64, "linear_dtype": "int8"}
    return Packed({"weight": q.codes, "weight_scale": q.scale}, marker, q)


def _w4a4_alias(weight: torch.Tensor) -> Packed:
    packed = _w4a4(weight)
    return replace(packed, marker={**(packed.marker or {}), "format": "int4_tensorwise"})


def _w4a8(weight: torch.Tensor) -> Packed:
    q = asym_w4a8.quantize(weight, convrot=64)
    assert q.codebook is not None
    tensors = {
        "weight": q.codes,
        "weight_s_rel": q.relative_scale,
        "weight_s_channel": q.channel_scale,
        "weight_codebook": q.codebook,
    }
    return Packed(tensors, {"format": "asym_w4a8_int8", "convrot_groupsize": 64}, q)


def _w4a8_even(weight: torch.Tensor) -> Packed:
    """Evenly spaced levels (no codebook), groups of 32, FP32 relative scales, and a correction of every group."""
    q = asym_w4a8.quantize(weight, convrot=16, group=32, scale_dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    correction = torch.randn(weight.shape[1] // 32, weight.shape[0], generator=generator).to(torch.bfloat16)
    stored = replace(q, codebook=None, correction=correction)
    tensors = {
        "weight": q.codes,
        "weight_s_rel": q.relative_scale,
        "weight_s_channel": q.channel_scale,
        "weight_correction": correction,
    }
    return Packed(tensors, {"format": "asym_w4a8_int8", "convrot_groupsize": 16, "group_size": 32}, stored)


def _awq(group: int, dtype: torch.dtype) -> Callable[[torch.Tensor], Packed]:
    def pack(weight: torch.Tensor) -> Packed:
        q = awq_w4a16.quantize(weight, group, dtype)
        marker: dict[str, object] = {"format": "awq_w4a16"} | ({} if group == 64 else {"group_size": group})
        return Packed({"weight": q.codes, "weight_scale": q.scale, "weight_zeros": q.zeros}, marker, q)

    return pack


PACKERS: Mapping[str, Callable[[torch.Tensor], Packed]] = {
    "plain": _plain,
    "bare fp8": _bare_fp8,
    "nvfp4": _nvfp4,
    "nvfp4, raw scales, orig_shape": _nvfp4_raw,
    "nvfp4 awq": _nvfp4_awq,
    "int8 rows": _int8_rows,
    "int8 tensor": _int8_tensor,
    "int8 convrot 64": _int8_convrot(64),
    "int8 convrot 4": _int8_convrot(4),
    "int8 convrot nested": _int8_nested,
    "fp8 with input scale": _fp8,
    "fp8 full precision": _fp8_full_precision,
    "fp8 e5m2 as bytes": _fp8_e5m2,
    "mxfp8": _mxfp8(torch.uint8),
    "mxfp8 as e8m0": _mxfp8(E8M0),
    "w4a4": _w4a4,
    "int4_tensorwise": _w4a4_alias,
    "w4a8": _w4a8,
    "w4a8 even": _w4a8_even,
    "awq": _awq(64, torch.bfloat16),
    "awq 32": _awq(32, torch.float16),
}
"""All take a weight whose K is a multiple of 64."""
