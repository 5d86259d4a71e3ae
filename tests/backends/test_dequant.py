"""The reference linear on every stored form, and the embedding over INT8 rows."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.linear.base import BackendLinear, install
from h3runtime.backends.linear.dequant import DequantLinear, dense, install_plain
from h3runtime.backends.linear.embedding import Int8Embedding, install_embedding
from h3runtime.quant import int8, nvfp4
from h3runtime.quant.stored import Nvfp4Weight, PlainWeight, StoredWeight

CPU = torch.device("cpu")


def weight(rows: int = 40, columns: int = 56) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def with_extras(stored: Nvfp4Weight, bias: torch.Tensor | None, scale: torch.Tensor | None) -> Nvfp4Weight:
    return Nvfp4Weight(stored.codes, stored.block_scale, stored.tensor_scale, stored.shape, bias, scale)


def stored_forms() -> list[StoredWeight]:
    return [
        PlainWeight(weight()),
        PlainWeight(weight().to(torch.bfloat16), torch.ones(40, dtype=torch.bfloat16)),
        nvfp4.quantize(weight()),
        with_extras(nvfp4.quantize(weight()), torch.ones(40), torch.full((56,), 1.5, dtype=torch.bfloat16)),
        int8.quantize(weight()),
    ]


@pytest.mark.parametrize("stored", stored_forms(), ids=lambda s: f"{s.format}-{'bias' if s.bias is not None else ''}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_plain_matmul_in_the_activation_s_dtype(stored: StoredWeight, dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 56, generator=torch.Generator().manual_seed(1)).to(dtype)
    backend = DequantLinear()
    got = backend.apply(x, backend.prepare(stored, CPU))
    scale = getattr(stored, "pre_quant_scale", None)
    scaled = x if scale is None else x * scale.to(dtype)
    bias = None if stored.bias is None else stored.bias.to(dtype)
    assert got.dtype is dtype
    assert torch.equal(got, F.linear(scaled, dense(stored, dtype), bias))


def test_the_pre_quant_scale_multiplies_the_activation() -> None:
    """Dividing it out of the weight before packing must give the unscaled product back, up to the packing's error."""
    scale = torch.linspace(0.5, 2.0, 56).to(torch.bfloat16)
    stored = with_extras(nvfp4.quantize(weight() / scale.float()), None, scale)
    x = torch.randn(7, 56, generator=torch.Generator().manual_seed(2))
    got, want = DequantLinear().apply(x, stored), F.linear(x, weight())
    assert float((got - want).norm() / want.norm()) < 0.15


def test_quantised_weights_are_cast_once_from_fp32() -> None:
    stored = nvfp4.quantize(weight())
    assert torch.equal(dense(stored, torch.bfloat16), nvfp4.dequantize_fp32(stored).to(torch.bfloat16))


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
