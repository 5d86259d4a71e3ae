"""Products with the loaded weights: one layer, rows that fill no tile, beside the same on the CPU.

The layer is the smallest of those that follow the choice and that the backend multiplies itself, in the form in which
it is resident, so that nothing is made for the question but a copy of it. What it is held to:

    NVFP4 times NVFP4                    the emulation's product on the CPU, of the bytes that are packed here
    other approximate products           their own definition in plain PyTorch, which each of them runs on a CPU
    every other one                      the decoded weight in FP32

Rows are 1, 17 and 129: one alone, and one more than what tiles are multiples of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

import torch
from torch.nn import functional as F

from h3runtime.backends.linear.base import BackendLinear, LinearBackend
from h3runtime.backends.linear.dequant import dense, scaled
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_packing import packed
from h3runtime.engine.self_test.check import Check, worst_row

FAMILY: Final = "linear"
ROWS: Final = (1, 17, 129)
TOLERANCE: Final = 0.01
"""Of the worst row. Both round to BF16 (0.0017 each, on average); FP8's partial sums lose 0.003 more (`linear.fp8`)."""
EXACT: Final = frozenset({"dequant", "resident_bf16", "fp32"})
"""Whose product is with the decoded weight."""
CPU: Final = torch.device("cpu")


def linear_checks(
    backend: LinearBackend[Any], layers: Sequence[tuple[str, BackendLinear]], device: torch.device
) -> Iterator[Check]:
    """layers: by name, those that follow the choice. None if what runs is the definition itself, as approximate
    products are on a CPU."""
    fit = [(name, layer) for name, layer in layers if backend.why_unfit(layer.resident) is None]
    if not fit or _is_definition(backend, device):
        return
    name, layer = min(fit, key=lambda found: (found[1].resident.shape[0] * found[1].resident.shape[1], found[0]))
    tolerance = float(getattr(backend, "tolerance", TOLERANCE))
    out_width, width = layer.resident.shape
    asked = f"{name} [{out_width}, {width}] by {', '.join(map(str, ROWS))} rows"
    yield Check(FAMILY, backend.name, asked, tolerance, lambda: _error(backend, layer.resident, device))


def _is_definition(backend: LinearBackend[Any], device: torch.device) -> bool:
    return type(backend) is Nvfp4EmulatedLinear or (device.type == "cpu" and backend.name not in EXACT)


def _error(backend: LinearBackend[Any], resident: Any, device: torch.device) -> float:
    on_cpu = moved(resident, CPU)
    errors = []
    for rows in ROWS:
        x = torch.randn(rows, resident.shape[1], generator=torch.Generator().manual_seed(rows)).bfloat16()
        got = backend.apply(x.to(device), resident)
        if isinstance(backend, Nvfp4LinearBase):
            wanted = of_packed(backend, x.to(device), resident, on_cpu)
        else:
            wanted = _wanted(backend, x, on_cpu)
        errors.append(worst_row(got.cpu(), wanted))
    # `max` passes over a NaN.
    return float(torch.tensor(errors).max())


def _wanted(backend: LinearBackend[Any], x: torch.Tensor, on_cpu: Any) -> torch.Tensor:
    """fp32 or bf16 [M, N]."""
    if backend.name in EXACT:
        bias = None if on_cpu.bias is None else on_cpu.bias.bfloat16().float()
        return F.linear(scaled(x, on_cpu).float(), dense(on_cpu, torch.bfloat16).float(), bias)
    return backend.apply(x, on_cpu)


def of_packed(backend: Nvfp4LinearBase, x: torch.Tensor, resident: Any, on_cpu: Any) -> torch.Tensor:
    """The emulation's product on the CPU of what this machine packs x to: where a reciprocal's last bit decides
    between two codes, that is for `packing` to judge, and would be 1 % of a row here."""
    rows = packed(scaled(x, resident).contiguous(), resident.input_scale, backend.scale_backend)
    return Nvfp4EmulatedLinear().apply(moved(rows, CPU), on_cpu)


def moved(resident: Any, device: torch.device) -> Any:
    """A resident form, with all tensors that it holds, on another device."""
    if isinstance(resident, torch.Tensor):
        return resident.to(device)
    if is_dataclass(resident) and not isinstance(resident, type):
        return replace(resident, **{f.name: moved(getattr(resident, f.name), device) for f in fields(resident)})
    return resident
