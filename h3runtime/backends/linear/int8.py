"""INT8 times INT8 (W8A8), rotated or not: comfy-kitchen's `int8_linear` on a GPU, its definition in plain torch.

    q_x, s_x = round(rotated x / s_x), max |rotated x| / 127 of each row        (checkpoint-formats §4.1)
    y = (q_x q_w^T, exact in INT32) * (s_x s_w), rounded once, + b

A weight stored as INT8 keeps its codes; every other one is encoded anew at load, from the numbers that its storage
decodes to in FP32, rotated over the largest group that divides K, as the published files are. What that costs the
weight is kept as `error`, about 0.7 % on Gaussian rows. A marker's `full_precision_matrix_mult` leaves a layer to
`dequant`.

The definition runs anywhere (`torch._int_mm`, padded to what a GPU's wants); x is rotated in its own dtype and divided
in FP32. comfy-kitchen's eager path divides in x's dtype: equal to the definition for FP32 activations bit for bit, and
its CUDA kernels are compared with it in tests/gpu. Fed and read as `base` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from h3runtime.backends.linear.base import STORED, CallBytes
from h3runtime.backends.linear.dequant import DequantLinear, dense, moved, scaled
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.quant import int8
from h3runtime.quant.rotation import LARGEST_GROUP, legal_groups
from h3runtime.quant.slices import SLICE_ELEMENTS, row_slices
from h3runtime.quant.stored import Int8Weight, StoredWeight

FORM = "int8"
FORMAT = "int8_tensorwise"
SMALLEST_CAPABILITY = (7, 5)
ROW_MULTIPLE, COLUMN_MULTIPLE = 32, 8
"""Of M, and of N and K, for `torch._int_mm` on a GPU, which wants more than 16 rows. A CPU's, in torch 2.13, gives
zeros for a K of 1."""
SUMS_BYTES = 8
"""Of each value of a slice of the result: in INT32, and in FP32."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A weight that was encoded anew. error: relative L2 of it, fp32 []."""

    weight: Int8Weight
    error: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape

    @property
    def bias(self) -> torch.Tensor | None:
        return self.weight.bias


class Int8Linear(DequantLinear):
    name = "int8"
    grade = "validated"
    reads = frozenset({FORM})
    tolerance = 0.02
    """Relative L2 to the definition of the worst row that the self-test asks. comfy-kitchen's kernels divide a BF16
    activation in BF16, so that some codes are the next ones; its eager path, which does as well, is up to 0.0114 off on
    such numbers at K = 7,168, its CUDA kernels 0.0126 on an H200."""

    def why_unavailable(self, device: torch.device) -> str | None:
        return self.why_not(linear_facts(device))

    def why_not(self, facts: LinearFacts) -> str | None:
        return facts.why_older_than(SMALLEST_CAPABILITY) if facts.kind == "cuda" else None

    def why_unfit(self, stored: Any) -> str | None:
        return "its marker asks for full precision" if getattr(stored, "full_precision", False) else None

    def form(self, stored: StoredWeight) -> str:
        return STORED if isinstance(stored, Int8Weight) or self.why_unfit(stored) else FORM

    def resident_bytes(self, stored_format: str, shape: tuple[int, int], stored_bytes: int) -> int:
        if stored_format == FORMAT:
            return stored_bytes
        return shape[0] * shape[1] + shape[0] * torch.float32.itemsize

    def call_bytes(self, resident: Any, rows: int, dtype: torch.dtype) -> CallBytes:
        """The codes of x; without comfy-kitchen, which rotates and sums in its kernels, also a slice of x rotated, and
        one of the sums in INT32 and FP32."""
        weight = self._encoded(resident)
        if weight is None:
            return super().call_bytes(resident, rows, dtype)
        out_width, width = weight.shape
        held = rows * (width + torch.float32.itemsize)
        if _has_kitchen(weight.codes.device):
            return CallBytes(held)
        rotated = dtype.itemsize * min(rows * width, SLICE_ELEMENTS) if weight.convrot else 0
        return CallBytes(held + rotated + SUMS_BYTES * min(rows * out_width, SLICE_ELEMENTS))

    def prepare(self, stored: StoredWeight, device: torch.device) -> Any:
        there = moved(stored, device)
        if self.form(there) is STORED:
            return there
        return encoded(there)

    def apply(self, x: torch.Tensor, resident: Any) -> torch.Tensor:
        weight = self._encoded(resident)
        if weight is None:
            return super().apply(x, resident)
        rows = scaled(x, weight).reshape(-1, x.shape[-1])
        multiply = _kitchen if _has_kitchen(x.device) else definition
        return multiply(rows, weight).view(*x.shape[:-1], -1)

    def _encoded(self, resident: Any) -> Int8Weight | None:
        """The codes that this backend may multiply, if it is there as such."""
        weight = resident.weight if isinstance(resident, Int8Rows) else resident
        return weight if isinstance(weight, Int8Weight) and self.why_unfit(weight) is None else None


def encoded(stored: StoredWeight) -> Int8Rows:
    """Any stored weight as INT8, bias and AWQ scale as they are."""
    weight = dense(stored, torch.float32)
    groups = legal_groups(weight.shape[1])
    group = groups[-1] if groups else None
    codes, scale = int8.quantize_rows(weight, group)
    made = Int8Weight(codes, scale, stored.bias, group, getattr(stored, "pre_quant_scale", None))
    error = int8.dequantize_fp32(made).sub_(weight).norm() / weight.norm().clamp(min=int8.SMALLEST_SCALE)
    return Int8Rows(made, error)


def definition(x: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    """x [M, K] -> [M, N] in x's dtype."""
    codes, scale = int8.quantize_rows(x, weight.convrot)
    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    by_row = weight.scale.reshape(1, -1)
    for part in row_slices(*y.shape):
        y[part] = product(codes[part], weight.codes).float().mul_(scale[part] * by_row)
    return y if weight.bias is None else y.add_(weight.bias.to(y.dtype))


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """codes int8 [M, K] and [N, K] -> int32 [M, N], exact."""
    rows, out_width = x.shape[0], weight.shape[0]
    x = _padded(x, ROW_MULTIPLE if x.is_cuda else 1)
    weight = _padded(weight, COLUMN_MULTIPLE if x.is_cuda else 1)
    sums: torch.Tensor = torch._int_mm(x, weight.t())
    return sums[:rows, :out_width]


def _padded(codes: torch.Tensor, rows: int) -> torch.Tensor:
    """Zeros behind to multiples of `rows` and of 8 columns; the same tensor where there is nothing to add."""
    below, beside = -codes.shape[0] % rows, -codes.shape[1] % COLUMN_MULTIPLE
    return F.pad(codes, (0, beside, 0, below)) if below or beside else codes


@cache
def _has_kitchen(device: torch.device) -> bool:
    return linear_facts(device).why_no_kitchen() is None


def _kitchen(x: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    """`definition` by comfy-kitchen's kernels."""
    import comfy_kitchen

    y: torch.Tensor = comfy_kitchen.int8_linear(
        x.contiguous(),
        weight.codes,
        weight.scale,
        None if weight.bias is None else weight.bias.to(x.dtype),
        out_dtype=x.dtype,
        convrot=weight.convrot is not None,
        convrot_groupsize=weight.convrot or LARGEST_GROUP,
    )
    return y
