"""NVFP4 in plain torch, against comfy-kitchen's eager backend bit for bit and against the rules spelled out by hand."""

import comfy_kitchen
import pytest
import torch
from comfy_kitchen.backends import eager
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import nvfp4, slices
from h3runtime.quant.stored import Nvfp4Weight
from tests.quant.samples import DTYPES, bits, random_weight

SIDES = st.integers(1, 300)


def kitchen_dequantize(stored: Nvfp4Weight, dtype: torch.dtype) -> torch.Tensor:
    rows, columns = stored.shape
    whole = eager.dequantize_nvfp4(stored.codes, stored.tensor_scale, stored.block_scale, output_type=dtype)
    return whole[:rows, :columns].contiguous()


@settings(max_examples=60, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=st.integers(0, 2**31), dtype=DTYPES)
def test_codes_and_scales_equal_the_library_bit_for_bit(rows: int, columns: int, seed: int, dtype: torch.dtype) -> None:
    weight = random_weight(rows, columns, seed, dtype)
    ours = nvfp4.quantize(weight)
    if ours.tensor_scale == 0:
        return
    codes, scale = eager.quantize_nvfp4(weight, ours.tensor_scale, pad_16x=True)
    assert torch.equal(ours.codes, codes)
    assert torch.equal(bits(ours.block_scale), bits(scale))


@settings(max_examples=60, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=st.integers(0, 2**31))
def test_dequantisation_equals_the_library_bit_for_bit(rows: int, columns: int, seed: int) -> None:
    stored = nvfp4.quantize(random_weight(rows, columns, seed))
    assert torch.equal(bits(nvfp4.dequantize_fp32(stored)), bits(kitchen_dequantize(stored, torch.float32)))
    assert torch.equal(bits(nvfp4.dequantize_kitchen_bf16(stored)), bits(kitchen_dequantize(stored, torch.bfloat16)))


@settings(max_examples=30, deadline=None)
@given(rows=SIDES, blocks=st.integers(1, 20), seed=st.integers(0, 2**31))
def test_any_bytes_dequantise_like_the_library(rows: int, blocks: int, seed: int) -> None:
    """Files made by others: every code and every finite scale, not only what our packer makes."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, blocks * 16)
    codes = torch.randint(0, 256, nvfp4.packed_shape(shape), generator=generator, dtype=torch.uint8)
    scale = torch.randint(0, 127, nvfp4.scale_shape(shape), generator=generator, dtype=torch.uint8)
    stored = Nvfp4Weight(codes, scale.view(torch.float8_e4m3fn), torch.rand((), generator=generator) * 1e-3, shape)
    assert torch.equal(bits(nvfp4.dequantize_fp32(stored)), bits(kitchen_dequantize(stored, torch.float32)))
    assert torch.equal(bits(nvfp4.dequantize_kitchen_bf16(stored)), bits(kitchen_dequantize(stored, torch.bfloat16)))


def test_the_library_is_its_eager_backend() -> None:
    """On a machine without a GPU the public entry dispatches to the functions compared with above."""
    stored = nvfp4.quantize(random_weight(32, 48, 1))
    with comfy_kitchen.use_backend("eager"):
        whole = comfy_kitchen.dequantize_nvfp4(stored.codes, stored.tensor_scale, stored.block_scale, torch.float32)
    assert torch.equal(whole, nvfp4.dequantize_fp32(stored))


def test_the_even_column_is_the_high_nibble() -> None:
    weight = torch.zeros(1, 16)
    weight[0, :2] = torch.tensor([6.0, 0.5])
    assert nvfp4.quantize(weight, torch.tensor(1.0)).codes[0, 0] == 0x71


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0.25, 0),
        (0.26, 0.5),
        (0.75, 1),
        (1.25, 1),
        (1.75, 2),
        (2.5, 2),
        (3.5, 4),
        (5, 4),
        (5.01, 6),
        (-0.75, -1),
        (-5, -4),
    ],
)
def test_ties_go_to_the_even_code(value: float, rounded: float) -> None:
    weight = torch.zeros(1, 16)
    weight[0, 0], weight[0, 1] = 6.0, value
    assert nvfp4.dequantize_fp32(nvfp4.quantize(weight, torch.tensor(1.0)))[0, 1] == rounded


def test_scales_kept_as_raw_bytes_are_the_same_scales() -> None:
    stored = nvfp4.quantize(random_weight(40, 40, 3))
    raw = Nvfp4Weight(stored.codes, bits(stored.block_scale), stored.tensor_scale, stored.shape)
    assert torch.equal(nvfp4.dequantize_fp32(raw), nvfp4.dequantize_fp32(stored))


def test_a_zero_tensor_is_zero_scales_and_codes() -> None:
    stored = nvfp4.quantize(torch.zeros(20, 40))
    assert not stored.codes.any() and not bits(stored.block_scale).any() and stored.tensor_scale == 0
    assert torch.equal(nvfp4.dequantize_fp32(stored), torch.zeros(20, 40))


def test_a_stale_tensor_scale_saturates() -> None:
    stored = nvfp4.quantize(torch.full((1, 16), 100.0), torch.tensor(1e-3))
    assert stored.block_scale.float()[0, 0] == 448
    assert nvfp4.dequantize_fp32(stored)[0, 0] == pytest.approx(2.688)


def test_slices_don_t_show(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = nvfp4.quantize(random_weight(400, 96, 5))
    whole = nvfp4.dequantize_fp32(stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", 128 * 96)
    assert torch.equal(nvfp4.dequantize_fp32(stored), whole)


def test_one_cast_is_nearer_to_fp32_than_the_library_s_bf16() -> None:
    """Distances that the docstring of `dequantize_kitchen_bf16` states, over 40 weights of 256x512."""
    cast, library, apart = [], [], []
    for seed in range(40):
        weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(seed)) * 0.05
        stored = nvfp4.quantize(weight)
        exact = nvfp4.dequantize_fp32(stored).double()
        ours, theirs = nvfp4.dequantize(stored, torch.bfloat16).double(), nvfp4.dequantize_kitchen_bf16(stored).double()
        cast.append(float((ours - exact).norm() / exact.norm()))
        library.append(float((theirs - exact).norm() / exact.norm()))
        apart.append(float((ours - theirs).norm() / exact.norm()))
    assert min(cast) > 0.9e-3 and max(cast) < 2.3e-3
    assert min(library) > 1.5e-3 and max(library) < 4.3e-3
    assert min(apart) > 1.1e-3 and max(apart) < 5.0e-3
    assert sum(cast) < sum(library)


def test_quantising_a_normal_weight_costs_9_5_percent() -> None:
    weight = torch.randn(200, 176, generator=torch.Generator().manual_seed(0)) * 0.05
    error = (nvfp4.dequantize_fp32(nvfp4.quantize(weight)) - weight).norm() / weight.norm()
    assert 0.085 < float(error) < 0.105


@given(
    st.integers(1, 40), st.integers(1, 70), st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.bfloat16])
)
def test_rounding_is_quantising_and_back(rows: int, columns: int, seed: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)
    packed = nvfp4.quantize(x)
    assert torch.equal(nvfp4.rounded(x), nvfp4.dequantize(packed, dtype))
    assert torch.equal(nvfp4.rounded(x.view(1, rows, columns)), nvfp4.rounded(x).view(1, rows, columns))
    stale = packed.tensor_scale * 0.3
    assert torch.equal(nvfp4.rounded(x, stale), nvfp4.dequantize(nvfp4.quantize(x, stale), dtype))
    assert not nvfp4.rounded(torch.zeros(rows, columns)).any()
