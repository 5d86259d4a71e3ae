"""The reference linear on every stored form, and the embedding over INT8 rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.linear.base import BackendLinear, install
from h3runtime.backends.linear.dequant import DequantLinear, dense, install_plain
from h3runtime.backends.linear.embedding import Int8Embedding, install_embedding
from h3runtime.backends.linear.resident import Fp32Linear, ResidentBf16Linear
from h3runtime.quant import asym_w4a8, awq_w4a16, convrot_w4a4, fp8, int8, mxfp8, nvfp4
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
from tests.backends import linears

CPU = torch.device("cpu")


def weight(rows: int = 40, columns: int = 56) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def with_extras(stored: Nvfp4Weight, bias: torch.Tensor | None, scale: torch.Tensor | None) -> Nvfp4Weight:
    return replace(stored, bias=bias, pre_quant_scale=scale)


def quantised() -> list[tuple[StoredWeight, float]]:
    """Every stored form of one weight [40, 256], and the most that its packing may cost, relative."""
    plain = weight(40, 256)
    return [
        (PlainWeight(plain), 0.0),
        (PlainWeight(plain.to(torch.bfloat16)), 0.003),
        (PlainWeight(plain.to(torch.float8_e4m3fn)), 0.04),
        (nvfp4.quantize(plain), 0.11),
        (int8.quantize(plain), 0.01),
        (int8.quantize(plain, 64), 0.01),
        (int8.quantize(plain, 256), 0.01),
        (fp8.quantize(plain), 0.04),
        (fp8.quantize(plain, torch.float8_e5m2), 0.07),
        (mxfp8.quantize(plain), 0.04),
        (convrot_w4a4.quantize(plain, 64), 0.17),
        (asym_w4a8.quantize(plain), 0.09),
        (awq_w4a16.quantize(plain), 0.11),
    ]


def by_hand(stored: StoredWeight) -> torch.Tensor:
    """fp32 [40, 256] by each format's own reference."""
    match stored:
        case PlainWeight():
            return stored.weight.float()
        case Nvfp4Weight():
            return nvfp4.dequantize_fp32(stored)
        case Int8Weight():
            return int8.dequantize_fp32(stored)
        case Fp8Weight():
            return fp8.dequantize_fp32(stored)
        case Mxfp8Weight():
            return mxfp8.dequantize_fp32(stored)
        case ConvrotInt4Weight():
            return convrot_w4a4.dequantize_fp32(stored)
        case AsymInt4Weight():
            return asym_w4a8.dequantize_fp32(stored)
        case AwqInt4Weight():
            return awq_w4a16.dequantize_fp32(stored)


@pytest.mark.parametrize(("stored", "cost"), quantised(), ids=lambda v: getattr(v, "format", ""))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_one_plain_matmul_in_the_activation_s_dtype(
    stored: StoredWeight, cost: float, dtype: torch.dtype, with_bias: bool
) -> None:
    bias = torch.linspace(-1, 1, 40).to(torch.bfloat16) if with_bias else None
    stored = replace(stored, bias=bias)
    x = torch.randn(3, 5, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    backend = DequantLinear()
    got = backend.apply(x, backend.prepare(stored, CPU))
    assert got.dtype is dtype and got.shape == (3, 5, 40)
    assert torch.equal(got, F.linear(x, by_hand(stored).to(dtype), None if bias is None else bias.to(dtype)))
    assert stored.shape == (40, 256)
    assert float((by_hand(stored) - weight(40, 256)).norm() / weight(40, 256).norm()) <= cost


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [s for s, _ in quantised() if hasattr(s, "pre_quant_scale")], ids=lambda s: s.format)
def test_a_pre_quant_scale_multiplies_the_activation_in_its_dtype(stored: StoredWeight, dtype: torch.dtype) -> None:
    scale = torch.linspace(0.5, 2.0, 256).to(torch.bfloat16)
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(2)).to(dtype)
    got = DequantLinear().apply(x, replace(stored, pre_quant_scale=scale))
    assert torch.equal(got, DequantLinear().apply(x * scale.to(dtype), stored))
    assert not torch.equal(got, DequantLinear().apply(x, stored))


@pytest.mark.parametrize("stored", [s for s, _ in quantised() if hasattr(s, "full_precision")], ids=lambda s: s.format)
def test_nothing_about_the_activation_has_an_effect(stored: StoredWeight) -> None:
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(2))
    told: dict[str, Any] = {"full_precision": True}
    if hasattr(stored, "input_scale"):
        told["input_scale"] = torch.tensor(0.01)
    assert torch.equal(DequantLinear().apply(x, replace(stored, **told)), DequantLinear().apply(x, stored))


def test_the_pre_quant_scale_multiplies_the_activation() -> None:
    """Dividing it out of the weight before packing must give the unscaled product back, up to the packing's error."""
    scale = torch.linspace(0.5, 2.0, 56).to(torch.bfloat16)
    stored = with_extras(nvfp4.quantize(weight() / scale.float()), None, scale)
    x = torch.randn(7, 56, generator=torch.Generator().manual_seed(2))
    got, want = DequantLinear().apply(x, stored), F.linear(x, weight())
    assert float((got - want).norm() / want.norm()) < 0.15


@pytest.mark.parametrize("stored", [s for s, _ in quantised()], ids=lambda s: s.format)
def test_weights_are_cast_once_from_fp32(stored: StoredWeight) -> None:
    assert torch.equal(dense(stored, torch.bfloat16), by_hand(stored).to(torch.bfloat16))


def test_nothing_is_a_parameter_that_could_be_recast() -> None:
    model = nn.Sequential(nn.Linear(56, 40))
    install(model, "0", DequantLinear(), nvfp4.quantize(weight()), CPU)
    model.to(torch.bfloat16)
    swapped = model[0]
    assert isinstance(swapped, BackendLinear) and not list(model.parameters())
    assert swapped.resident.tensor_scale.dtype is torch.float32


def test_install_plain_keeps_stored_dtypes() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4)).to(torch.bfloat16)
    install_plain(model)
    assert model[0].resident.weight.dtype is torch.bfloat16
    assert model[0](torch.ones(2, 8)).dtype is torch.float32


def test_an_int8_embedding_decodes_the_rows_asked_for() -> None:
    table = int8.quantize(weight())
    model = nn.ModuleDict({"embed": nn.Embedding(40, 56)})
    install_embedding(model, "embed", table)
    ids = torch.tensor([[3, 39], [0, 3]])
    assert isinstance(model["embed"], Int8Embedding)
    assert torch.equal(model["embed"](ids), int8.dequantize_fp32(table)[ids])


@pytest.mark.parametrize("backend", [DequantLinear(), ResidentBf16Linear(), Fp32Linear()], ids=lambda b: b.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["bf16", "fp16", "nvfp4", "int8_convrot_64", "fp8", "awq_w4a16"])
def test_several_inputs_give_what_each_gives_by_itself(backend, dtype, name: str) -> None:
    """Bit for bit, with the weight decoded once."""
    stored = linears.with_extras(linears.stored_forms()[name])
    layer = BackendLinear(backend, backend.prepare(stored, CPU))
    several = [linears.activations(rows).to(dtype) for rows in (2, 3, 3)]
    assert all(torch.equal(a, layer(x)) for a, x in zip(layer.each(several), several, strict=True))
