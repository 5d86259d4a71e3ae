"""The reference linear: whatever the storage, cast or dequantise to the activation's dtype, then one plain matmul.

Weights stay resident exactly as the file stores them. Every quantised format is decoded in FP32, rotated back where the
file is rotated, and cast once to the activation's dtype; an AWQ `pre_quant_scale` multiplies the activation first, in
the activation's dtype (checkpoint-formats §3). Activations are never quantised, so a stored `input_scale` and a
marker's `full_precision_matrix_mult` change nothing here: what the latter asks for is all that this backend does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.linear.base import STORED, CallBytes, install
from h3runtime.quant import asym_w4a8, awq_w4a16, convrot_w4a4, fp8, int8, mxfp8, nvfp4
from h3runtime.quant.slices import SLICE_ELEMENTS
from h3runtime.quant.stored import (
    AsymInt4Weight,
    AwqInt4Weight,
    ConvrotInt4Weight,
    Fp8Weight,
    Int8Weight,
    Mxfp8Weight,
    Nvfp4Weight,
    PlainWeight,
    StoredWeight,
)

BF16 = "bf16"
"""The form of a weight that was decoded once, to the BF16 that `dequant` would decode it to at every call."""
DECODING_BYTES = 10
"""Of each weight of a slice that is decoded: its number, looked up and scaled in fp32, and its place in the table."""


class DequantLinear:
    """Weights only: `full_precision` and `input_scale` of a stored weight have no effect."""

    name = "dequant"
    grade = "reference"
    reads = frozenset({BF16})
    only = ""

    def why_unavailable(self, device: torch.device) -> str | None:  # noqa: ARG002  # part of the interface
        return None

    def why_unfit(self, stored: StoredWeight) -> str | None:  # noqa: ARG002
        return None

    def form(self, stored: StoredWeight) -> str:  # noqa: ARG002
        return STORED

    def resident_bytes(self, stored_format: str, shape: tuple[int, int], stored_bytes: int) -> int:  # noqa: ARG002
        return stored_bytes

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:  # noqa: ARG002
        """The weight in x's dtype, and a slice of it while it is decoded; nothing of one that is there already."""
        if isinstance(resident, PlainWeight) and resident.weight.dtype == dtype:
            return CallBytes()
        values = math.prod(resident.shape)
        return CallBytes(values * dtype.itemsize, min(values, SLICE_ELEMENTS) * DECODING_BYTES)

    def prepare(self, stored: StoredWeight, device: torch.device) -> Any:
        return moved(stored, device)

    def apply(self, x: torch.Tensor, resident: Any) -> torch.Tensor:
        bias = None if resident.bias is None else resident.bias.to(x.dtype)
        return F.linear(scaled(x, resident), dense(resident, x.dtype), bias)

    def apply_each(self, several: Sequence[torch.Tensor], resident: Any) -> list[torch.Tensor]:
        """`apply` to each of some inputs of one dtype, which the weight is decoded to once."""
        scale = getattr(resident, "pre_quant_scale", None)
        ready = PlainWeight(dense(resident, several[0].dtype), resident.bias, pre_quant_scale=scale)
        return [self.apply(x, ready) for x in several]


def moved(stored: StoredWeight, device: torch.device) -> StoredWeight:
    """The same on `device`."""
    tensors = {f.name: getattr(stored, f.name) for f in fields(stored)}
    there: dict[str, Any] = {k: t.to(device) for k, t in tensors.items() if isinstance(t, torch.Tensor)}
    return replace(stored, **there)


def scaled(x: torch.Tensor, stored: Any) -> torch.Tensor:
    """x times the AWQ scale of a weight that has one, in x's dtype, before anything else (checkpoint-formats §3)."""
    pre_quant_scale: torch.Tensor | None = getattr(stored, "pre_quant_scale", None)
    return x if pre_quant_scale is None else x * pre_quant_scale.to(x.dtype)


def dense(stored: StoredWeight, dtype: torch.dtype) -> torch.Tensor:
    """The weight [N, K] as plain numbers of `dtype`; quantised ones by FP32 arithmetic and one cast."""
    match stored:
        case PlainWeight():
            return stored.weight.to(dtype)
        case Nvfp4Weight():
            return nvfp4.dequantize(stored, dtype)
        case Int8Weight():
            return int8.dequantize(stored, dtype)
        case Fp8Weight():
            return fp8.dequantize(stored, dtype)
        case Mxfp8Weight():
            return mxfp8.dequantize(stored, dtype)
        case ConvrotInt4Weight():
            return convrot_w4a4.dequantize(stored, dtype)
        case AsymInt4Weight():
            return asym_w4a8.dequantize(stored, dtype)
        case AwqInt4Weight():
            return awq_w4a16.dequantize(stored, dtype)


def install_plain(model: nn.Module) -> None:
    """Give every `nn.Linear` of a loaded model the cast-per-call rule: weights stay as stored, x's dtype decides."""
    backend = DequantLinear()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else module.bias.detach()
            install(model, name, backend, PlainWeight(module.weight.detach(), bias), module.weight.device)
