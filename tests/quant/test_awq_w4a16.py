"""4-bit codes with scales and zero points per group, against comfy-kitchen's layout bit for bit."""

import pytest
import torch
from comfy_kitchen.backends.eager.awq import gemv_awq_w4a16
from comfy_kitchen.tensor import TensorCoreAWQW4A16Layout
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import awq_w4a16, slices
from h3runtime.quant.stored import AwqInt4Weight
from tests.quant.samples import (
    DTYPES,
    SEEDS,
    generator,
    normal_weight,
    random_bytes,
    random_weight,
    relative_error,
    rows_of,
    same,
)

ROWS = st.integers(1, 90)
GROUPS = st.sampled_from([2, 16, 64, 128])


def kitchen_dequantize(stored: AwqInt4Weight, group: int) -> torch.Tensor:
    params = TensorCoreAWQW4A16Layout.Params(
        scale=stored.scale, zeros=stored.zeros, group_size=group, orig_dtype=stored.scale.dtype, orig_shape=stored.shape
    )
    return TensorCoreAWQW4A16Layout.dequantize(stored.codes, params)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, blocks=st.integers(1, 4), group=GROUPS, seed=SEEDS, dtype=DTYPES)
def test_any_bytes_dequantise_like_the_library(
    rows: int, blocks: int, group: int, seed: int, dtype: torch.dtype
) -> None:
    shape = (rows, blocks * group)
    scale = torch.rand(awq_w4a16.scale_shape(shape, group), generator=generator(seed)).to(dtype)
    zeros = torch.randn(awq_w4a16.scale_shape(shape, group), generator=generator(seed + 1)).to(dtype)
    stored = AwqInt4Weight(random_bytes(awq_w4a16.packed_shape(shape), seed).view(torch.int8), scale, zeros)
    assert stored.shape == shape
    assert same(awq_w4a16.dequantize_kitchen(stored), kitchen_dequantize(stored, group))
    wide = AwqInt4Weight(stored.codes, scale.float(), zeros.float())
    assert same(awq_w4a16.dequantize_fp32(stored), kitchen_dequantize(wide, group))
    assert same(awq_w4a16.dequantize(stored, dtype), awq_w4a16.dequantize_fp32(stored).to(dtype))


def test_the_library_s_product_is_with_the_same_weight() -> None:
    stored = awq_w4a16.quantize(normal_weight(24, 128), dtype=torch.float32)
    x = torch.randn(3, 128, generator=generator(1))
    theirs = gemv_awq_w4a16(x, stored.codes, stored.scale, stored.zeros)
    assert same(theirs, x @ awq_w4a16.dequantize_fp32(stored).T)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, blocks=st.integers(1, 4), group=GROUPS, seed=SEEDS)
def test_an_error_is_at_most_half_a_step(rows: int, blocks: int, group: int, seed: int) -> None:
    weight = random_weight(rows, blocks * group, seed)
    stored = awq_w4a16.quantize(weight, group, torch.float32)
    step = stored.scale.T.repeat_interleave(group, dim=1)
    slack = 1e-6 * weight.abs().amax()
    assert ((awq_w4a16.dequantize_fp32(stored) - weight).abs() <= step * 0.501 + slack).all()
    assert stored.codes.shape == awq_w4a16.packed_shape(stored.shape) and stored.shape == tuple(weight.shape)
    assert stored.scale.shape == stored.zeros.shape == awq_w4a16.scale_shape(stored.shape, group)


def test_a_group_of_equal_weights_is_its_zero_point() -> None:
    weight = torch.full((2, 128), 0.5)
    weight[1] = 0
    stored = awq_w4a16.quantize(weight)
    assert not stored.scale.any()
    assert torch.equal(awq_w4a16.dequantize_fp32(stored), weight)


def test_the_even_column_is_the_low_nibble() -> None:
    weight = torch.zeros(1, 64)
    weight[0, 0], weight[0, 1] = 15.0, 7.0
    stored = awq_w4a16.quantize(weight)
    assert stored.codes.view(torch.uint8)[0, 0] == 0x7F
    assert (stored.scale[0, 0], stored.zeros[0, 0]) == (1, 8)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 0.10), (torch.float16, 0.095), (torch.float32, 0.095)])
def test_a_normal_weight_costs_9_percent(dtype: torch.dtype, limit: float) -> None:
    weight = normal_weight(200, 1024)
    assert 0.07 < relative_error(awq_w4a16.dequantize_fp32(awq_w4a16.quantize(weight, dtype=dtype)), weight) < limit


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 64"):
        awq_w4a16.quantize(normal_weight(3, 96))


def test_slices_don_t_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal_weight(100, 128)
    stored = awq_w4a16.quantize(weight)
    whole = awq_w4a16.dequantize_fp32(stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", rows_of(7, 128))
    assert same(awq_w4a16.quantize(weight).codes, stored.codes) and same(awq_w4a16.dequantize_fp32(stored), whole)
