"""E4M3 times E4M3, sums in FP32: `torch._scaled_mm` on a GPU, its definition in plain torch everywhere else.

    q_x = round(x / s_x)    saturated at 448, ties to even        y = (q_x q_w^T) s_x s_w, rounded once, + b

Two kinds of weight. One stored as FP8 keeps its codes and its own scales (checkpoint-formats §4.3): s_w one number, s_x
its `input_scale`, or 1 without one, as ComfyUI has it. Every other one is encoded anew at load, with a scale a row,
from the numbers that its storage decodes to in FP32; s_x is then one number a row of x, found as x comes. What that
costs the weight is kept as `error`, about 2.6 % on Gaussian rows. A marker's `full_precision_matrix_mult`, and a shape
that isn't in multiples of 16, leave a layer to `dequant` (G10).

The definition multiplies the decoded codes in FP32; a GPU may add in another order and, up to `FAST_WIDTH`, to fewer
bits. On a CPU, `_scaled_mm` of torch 2.13 with scales per row agrees with it in 99.95 % of BF16 results, and with one
scale per tensor runs a thousand times slower: it isn't used there. Fed and read as `base` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import STORED, BackendLinear, CallBytes
from h3runtime.backends.linear.dequant import DequantLinear, dense, moved, scaled
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.quant import fp8
from h3runtime.quant.row_codes import RowCodes
from h3runtime.quant.slices import SLICE_ELEMENTS, row_slices
from h3runtime.quant.stored import Fp8Weight, StoredWeight

FORM = "fp8"
MULTIPLE = 16
"""Of N and K, for `_scaled_mm`."""
SMALLEST_CAPABILITY = (8, 9)
FAST_WIDTH = 6144
"""K up to which partial sums stay in Hopper's tensor cores; beyond, they are added up in FP32 every 128 products. There
they have some 13 bits and are cut off: on random numbers that is 0.003 beside 0.037 of rounding, but a row of x along a
row of W, whose products all add up, loses 8, 10 and 19 % of its sum at K = 5,376, 7,168 and 14,336 (emulated; relative
L2 of whole products with such rows, emulated and on an H200: 0.058 and 0.059 at 7,168, 0.115 and 0.118 at 14,336). FP32
costs out and fc2 0.2 and 0.4 ms at 37,810 rows; qkv and fc1 it would cost 0.7 and 1.0."""
ROUNDING_BYTES = 8
"""Of each value of a slice that is rounded: in FP32, and divided."""


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """codes E4M3 [N, K], scale fp32 [1, N], of a weight that was encoded anew. error: relative L2 of it, fp32 []."""

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None
    pre_quant_scale: torch.Tensor | None
    error: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


class Fp8Linear(DequantLinear):
    name = "fp8"
    grade = "validated"
    reads = frozenset({FORM})

    def why_unavailable(self, device: torch.device) -> str | None:
        return self.why_not(linear_facts(device))

    def why_not(self, facts: LinearFacts) -> str | None:
        return facts.why_older_than(SMALLEST_CAPABILITY) if facts.kind == "cuda" else None

    def why_unfit(self, stored: Any) -> str | None:
        if getattr(stored, "full_precision", False):
            return "its marker asks for full precision"
        if stored.shape[0] % MULTIPLE or stored.shape[1] % MULTIPLE:
            return f"{list(stored.shape)} isn't in multiples of {MULTIPLE}"
        return None

    def form(self, stored: StoredWeight) -> str:
        return STORED if isinstance(stored, Fp8Weight) or self.why_unfit(stored) else FORM

    def resident_bytes(self, stored_format: str, shape: tuple[int, int], stored_bytes: int) -> int:
        rows, columns = shape
        if stored_format in fp8.DTYPES or rows % MULTIPLE or columns % MULTIPLE:
            return stored_bytes
        return rows * columns + rows * torch.float32.itemsize

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """The codes of x, and a slice of it while it is rounded; without a kernel also both operands in FP32."""
        if not self._multiplies(resident):
            return super().call_bytes(resident, rows, dtype)
        (out_width, width), wide = resident.shape, torch.float32.itemsize
        rounding = min(rows * width, SLICE_ELEMENTS) * ROUNDING_BYTES
        if _has_kernel(resident.codes.device, dtype):
            return CallBytes(rows * (width + wide), rounding)
        return CallBytes(rows * width + wide * (rows * (width + out_width) + width * out_width), rounding)

    def prepare(self, stored: StoredWeight, device: torch.device) -> Any:
        there = moved(stored, device)
        return there if self.form(there) is STORED else encoded(there)

    def apply(self, x: torch.Tensor | RowCodes, resident: Any) -> torch.Tensor:
        """As `base` says; or, where `reads_codes` or `stored_scale` say so, x that a producer has rounded by the same
        rule."""
        if isinstance(x, RowCodes):
            scale = resident.scale if isinstance(resident, Fp8Rows) else resident.scale.reshape(()).float()
            y = multiplied(x.codes, resident.codes, x.scale, scale, x.dtype)
            return y if resident.bias is None else y.add_(resident.bias.to(y.dtype))
        if not self._multiplies(resident):
            return super().apply(x, resident)
        rows = scaled(x, resident).reshape(-1, x.shape[-1])
        y = _by_rows(rows, resident) if isinstance(resident, Fp8Rows) else _by_stored_scales(rows, resident)
        y = y if resident.bias is None else y.add_(resident.bias.to(y.dtype))
        return y.view(*x.shape[:-1], -1)

    def _multiplies(self, resident: Any) -> bool:
        """Whether it is there as codes that this backend may multiply."""
        return isinstance(resident, Fp8Rows) or (isinstance(resident, Fp8Weight) and self.why_unfit(resident) is None)


def reads_codes(linear: nn.Module) -> bool:
    """Whether `linear` takes `RowCodes`: it would round its input by rows itself, and nothing else reads that input."""
    return (
        type(linear) is BackendLinear
        and isinstance(linear.backend, Fp8Linear)
        and isinstance(linear.resident, Fp8Rows)
        and linear.resident.pre_quant_scale is None
    )


def unbiased(linear: nn.Module, x: RowCodes) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What `linear`, which `reads_codes`, makes of x, [M, N], and its bias in the same dtype, not added."""
    assert isinstance(linear, BackendLinear) and isinstance(linear.resident, Fp8Rows)
    weight = linear.resident
    y = multiplied(x.codes, weight.codes, x.scale, weight.scale, x.dtype)
    return y, None if weight.bias is None else weight.bias.to(x.dtype)


def stored_scale(linear: nn.Module) -> torch.Tensor | None:
    """The one scale, fp32 [], that `linear` would round its input by, if nothing else reads that input."""
    if type(linear) is not BackendLinear or not isinstance(linear.backend, Fp8Linear):
        return None
    weight = linear.resident
    return input_scale(weight) if isinstance(weight, Fp8Weight) and linear.backend.why_unfit(weight) is None else None


def input_scale(weight: Fp8Weight) -> torch.Tensor:
    """fp32 []: the stored one, or 1."""
    stored = weight.input_scale
    return torch.ones((), device=weight.codes.device) if stored is None else stored.reshape(()).float()


def encoded(stored: StoredWeight) -> Fp8Rows:
    """Any stored weight with a scale a row, bias and AWQ scale as they are."""
    weight = dense(stored, torch.float32)
    codes, scale = fp8.quantize_rows(weight)
    off, whole = weight.new_zeros(()), weight.new_zeros(())
    for part in row_slices(*weight.shape):
        off += codes[part].float().mul_(scale[part]).sub_(weight[part]).square_().sum()
        whole += weight[part].square().sum()
    error = (off / whole.clamp(min=fp8.SMALLEST_SCALE)).sqrt()
    return Fp8Rows(codes, scale.reshape(1, -1), stored.bias, getattr(stored, "pre_quant_scale", None), error)


def multiplied(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """codes [M, K] and [N, K] with scales fp32 [] and [], or [M, 1] and [1, N] -> [M, N] in `dtype`."""
    if _has_kernel(x.device, dtype):
        return torch._scaled_mm(x, weight.t(), x_scale, scale, out_dtype=dtype, use_fast_accum=x.shape[1] <= FAST_WIDTH)
    return definition(x, weight, x_scale, scale, dtype)


def definition(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return (x.float() @ weight.float().t()).mul_(x_scale).mul_(scale).to(dtype)


def _by_rows(x: torch.Tensor, weight: Fp8Rows) -> torch.Tensor:
    codes, scale = fp8.quantize_rows(x)
    return multiplied(codes, weight.codes, scale, weight.scale, x.dtype)


def _by_stored_scales(x: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    x_scale = input_scale(weight)
    return multiplied(fp8.codes_of(x, x_scale), weight.codes, x_scale, weight.scale.reshape(()).float(), x.dtype)


def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
