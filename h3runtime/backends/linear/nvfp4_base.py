"""What the linears of NVFP4 weights have in common that multiply NVFP4 by NVFP4 (W4A4).

    x [M, K], times an AWQ scale -> packed: codes and E4M3 scales in tiles, by one tensor scale (dynamic, or the
    `input_scale` of the file) -> product: (s_a s_w) * (a w^T in FP32), rounded once -> + b

A backend is a `product` and a probe. x may come packed already, from a producer that made it so by the same rule
(`nvfp4_form`). Rows of padding are zeros and are cropped, so they mean nothing. A layer that isn't stored as NVFP4, one
whose marker forbids it, and a shape that the product doesn't take are left to `dequant`. The definition is
`nvfp4_emulated`. Fed and read as `base` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear, CallBytes
from h3runtime.backends.linear.dequant import DequantLinear, scaled
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4_packing import (
    KITCHEN_ROWS,
    Nvfp4Form,
    Packings,
    ScaleBackend,
    has_packer,
    packed,
    why_no_packer,
)
from h3runtime.quant.nvfp4 import BLOCK
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.slices import round_up
from h3runtime.quant.stored import Nvfp4Weight
from h3runtime.quant.tiles import TILE_COLUMNS, TILE_ROWS
from h3runtime.settings import variable

FORMAT = "nvfp4"
SCALE_SETTING = "nvfp4_scale_backend"
DEFINITION = "definition"
"""Who packs where no kernel does: `quant.nvfp4`."""
WIDTH_MULTIPLE, OUT_MULTIPLE = 32, 8
"""Of K and N (checkpoint-formats §3)."""


class Nvfp4LinearBase(DequantLinear, ABC):
    """scale_backend: who packs, see `nvfp4_packing`."""

    grade = "experimental"
    reads = frozenset[str]()
    only = FORMAT

    def __init__(self, scale_backend: ScaleBackend = "kitchen") -> None:
        self.scale_backend: ScaleBackend = scale_backend
        self.packings = Packings()

    def why_unpacked(self, facts: LinearFacts) -> str | None:
        """Why who is to pack can't on a CUDA device of these facts, with the setting that names it."""
        why = why_no_packer(self.scale_backend, facts) if facts.kind == "cuda" else None
        return why and f"{variable(SCALE_SETTING)}={self.scale_backend}: {why}"

    def why_unfit(self, stored: Any) -> str | None:
        if not isinstance(stored, Nvfp4Weight):
            return f"it is stored as {stored.format}"
        if stored.full_precision:
            return "its marker asks for full precision"
        if stored.codes.shape[1] * 2 % WIDTH_MULTIPLE or stored.codes.shape[0] % OUT_MULTIPLE:
            return f"{list(stored.shape)} isn't in multiples of {OUT_MULTIPLE} by {WIDTH_MULTIPLE}"
        return None

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """Codes and scales of x; nothing is decoded."""
        if self.why_unfit(resident) is not None:
            return super().call_bytes(resident, rows, dtype)
        return CallBytes(packed_bytes(rows, resident.codes.shape[1] * 2, self.scale_backend))

    def came_bytes(self, resident: Any, rows: int) -> CallBytes:  # noqa: ARG002
        """Of a call whose x came packed."""
        return CallBytes()

    def view_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> int:
        """What a call takes beside `call_bytes`, and gives back once x is packed, where x is a view into wider rows: a
        copy, unless our own packer reads it by a stored scale."""
        strided = self.scale_backend == "vortex_native" and getattr(resident, "input_scale", None) is not None
        return 0 if strided or self.why_unfit(resident) is not None else rows * resident.shape[1] * dtype.itemsize

    def apply(self, x: torch.Tensor | Nvfp4Rows, resident: Any) -> torch.Tensor:
        """As `base` says; or, where `nvfp4_form` says so, x that a producer has packed."""
        if isinstance(x, Nvfp4Rows):
            self.packings.came += 1
            return biased(self.product(x, resident), resident)
        if self.why_unfit(resident) is not None:
            return super().apply(x, resident)
        y = self.product(self._packed(scaled(x, resident), resident.input_scale), resident)
        return biased(y, resident).reshape(*x.shape[:-1], resident.shape[0])

    def _packed(self, x: torch.Tensor, stored_scale: torch.Tensor | None) -> Nvfp4Rows:
        """x [..., K] of any strides."""
        rows = x.reshape(-1, x.shape[-1])
        self.packings.by[self.scale_backend if has_packer(rows, self.scale_backend) else DEFINITION] += 1
        return packed(rows, stored_scale, self.scale_backend)

    @abstractmethod
    def product(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        """-> [M, N] in `rows.dtype`, without the bias and without rows or columns of padding."""


def packings_of(model: nn.Module) -> list[Packings]:
    """What the backends counted that multiply `model`'s layers now, each once."""
    layers = (part for part in model.modules() if isinstance(part, BackendLinear) and part.switched)
    found = {id(b): b.packings for layer in layers if isinstance(b := layer.backend, Nvfp4LinearBase)}
    return list(found.values())


def nvfp4_form(linear: nn.Module) -> Nvfp4Form | None:
    """As what `linear` would pack its input by itself, where nothing else reads that input; None where it doesn't. An
    adapter's branch reads it, and so does the AWQ scale of the layer."""
    if type(linear) is not BackendLinear or not isinstance(linear.backend, Nvfp4LinearBase):
        return None
    weight = linear.resident
    if linear.backend.why_unfit(weight) is not None or weight.pre_quant_scale is not None:
        return None
    return Nvfp4Form(weight.input_scale, linear.backend.scale_backend)


def biased(y: torch.Tensor, weight: Nvfp4Weight) -> torch.Tensor:
    return y if weight.bias is None else y.add(weight.bias.to(y.dtype))


def packed_bytes(rows: int, width: int, by: ScaleBackend) -> int:
    """Of an activation of so many rows: codes, which comfy-kitchen's packer rounds the rows of, and scales in whole
    tiles."""
    whole = rows if by == "vortex_native" else round_up(rows, KITCHEN_ROWS)
    return whole * width // 2 + round_up(rows, TILE_ROWS) * round_up(width // BLOCK, TILE_COLUMNS)
