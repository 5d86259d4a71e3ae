"""One weight in every form that a file stores, activations with and without outliers, and how far results are off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from h3runtime.backends.linear.dequant import dense
from h3runtime.quant import asym_w4a8, awq_w4a16, convrot_w4a4, fp8, int8, mxfp8, nvfp4
from h3runtime.quant.stored import PlainWeight, StoredWeight

CPU = torch.device("cpu")
ROWS, COLUMNS = 48, 256


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored_forms(rows: int = ROWS, columns: int = COLUMNS) -> dict[str, StoredWeight]:
    plain = randn(rows, columns, seed=0) * 0.05
    return {
        "bf16": PlainWeight(plain.bfloat16()),
        "fp16": PlainWeight(plain.half()),
        "fp32": PlainWeight(plain),
        "bare_fp8": PlainWeight((plain * 20).to(torch.float8_e4m3fn)),
        "nvfp4": nvfp4.quantize(plain),
        "int8": int8.quantize(plain),
        "int8_convrot_64": int8.quantize(plain, 64),
        "int8_convrot_256": int8.quantize(plain, 256),
        "fp8": fp8.quantize(plain),
        "fp8_e5m2": fp8.quantize(plain, torch.float8_e5m2),
        "mxfp8": mxfp8.quantize(plain),
        "w4a4": convrot_w4a4.quantize(plain, 64),
        "w4a8": asym_w4a8.quantize(plain),
        "awq_w4a16": awq_w4a16.quantize(plain),
    }


def activations(rows: int, columns: int = COLUMNS, *, outliers: bool = False) -> torch.Tensor:
    """bf16 [rows, columns]. outliers: three channels are 40 times as large, as a DiT's massive activations are."""
    x = randn(rows, columns, seed=rows)
    if outliers:
        x[:, :: columns // 3] *= 40
    return x.bfloat16()


def with_extras(stored: StoredWeight, *, scale: bool = True) -> StoredWeight:
    """With a bias, and with an AWQ scale where the form can have one."""
    extras: dict[str, Any] = {"bias": torch.linspace(-1, 1, stored.shape[0]).bfloat16()}
    if scale and hasattr(stored, "pre_quant_scale"):
        extras["pre_quant_scale"] = torch.linspace(0.5, 2, stored.shape[1]).bfloat16()
    return replace(stored, **extras)


def wanted(x: torch.Tensor, stored: StoredWeight) -> torch.Tensor:
    """fp64 [M, N]: the weight that the file stands for times x, nothing rounded on the way."""
    scale, wide = getattr(stored, "pre_quant_scale", None), x.double()
    if scale is not None:
        wide = (x * scale).double()
    y = wide @ dense(stored, torch.float32).double().T
    return y if stored.bias is None else y + stored.bias.double()


def error(got: torch.Tensor, reference: torch.Tensor) -> float:
    return float((got.double() - reference.double()).norm() / reference.double().norm())


def apart(got: torch.Tensor, reference: torch.Tensor) -> tuple[float, int]:
    """Of bf16 results: the share that differs, and by how many representable numbers at most."""
    steps = (_order(got) - _order(reference)).abs()
    return float((steps > 0).float().mean()), int(steps.max())


def _order(x: torch.Tensor) -> torch.Tensor:
    """Bits as integers that count as the numbers do."""
    assert x.dtype is torch.bfloat16
    raw = x.contiguous().view(torch.int16).int()
    return torch.where(raw < 0, -(raw & 0x7FFF), raw)
