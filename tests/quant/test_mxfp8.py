"""MXFP8, against comfy-kitchen's eager backend bit for bit."""

import pytest
import torch
from comfy_kitchen.backends import eager
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import mxfp8, slices, tiles
from h3runtime.quant.stored import Mxfp8Weight
from tests.quant.samples import (
    DTYPES,
    SEEDS,
    normal_weight,
    random_bytes,
    random_weight,
    relative_error,
    rows_of,
    same,
)

SIDES = st.integers(1, 300)


def kitchen_dequantize(stored: Mxfp8Weight, dtype: torch.dtype) -> torch.Tensor:
    rows, columns = stored.shape
    whole = eager.dequantize_mxfp8(stored.codes, stored.block_scale.view(torch.float8_e8m0fnu), dtype)
    return whole[:rows, :columns].contiguous()


@settings(max_examples=60, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=SEEDS, dtype=DTYPES)
def test_packing_and_unpacking_equal_the_library_bit_for_bit(
    rows: int, columns: int, seed: int, dtype: torch.dtype
) -> None:
    weight = random_weight(rows, columns, seed, dtype)
    ours = mxfp8.quantize(weight)
    codes, scale = eager.quantize_mxfp8(weight, pad_32x=True)
    assert same(ours.codes, codes) and same(ours.block_scale, scale.view(torch.uint8))
    assert ours.codes.shape == mxfp8.packed_shape((rows, columns))
    assert ours.block_scale.shape == mxfp8.scale_shape((rows, columns))
    assert same(mxfp8.dequantize(ours, dtype), kitchen_dequantize(ours, dtype))


@settings(max_examples=40, deadline=None)
@given(rows=SIDES, blocks=st.integers(1, 10), seed=SEEDS, dtype=DTYPES)
def test_any_bytes_dequantise_like_the_library(rows: int, blocks: int, seed: int, dtype: torch.dtype) -> None:
    """Every finite code and every exponent but the NaN."""
    shape = (rows, blocks * 32)
    codes = random_bytes(mxfp8.packed_shape(shape), seed, 0, 127).view(torch.float8_e4m3fn)
    stored = Mxfp8Weight(codes, random_bytes(mxfp8.scale_shape(shape), seed + 1, 0, 255), shape)
    assert same(mxfp8.dequantize(stored, dtype), kitchen_dequantize(stored, dtype))


@settings(max_examples=40, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=SEEDS)
def test_an_error_is_at_most_half_a_step(rows: int, columns: int, seed: int) -> None:
    weight = random_weight(rows, columns, seed)
    stored = mxfp8.quantize(weight)
    blocks, bytes_of = -(-columns // 32), tiles.unswizzle(stored.block_scale, rows, -(-columns // 32))
    factor = torch.exp2(bytes_of.float() - 127).repeat_interleave(32, dim=1)[:, :columns]
    assert factor.shape == weight.shape and blocks > 0
    bound = torch.maximum(weight.abs() * 2**-4, factor * 2**-10) * 1.0001
    assert ((mxfp8.dequantize_fp32(stored) - weight).abs() <= bound).all()


@settings(max_examples=30, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=SEEDS)
def test_packing_what_was_unpacked_changes_no_value(rows: int, columns: int, seed: int) -> None:
    once = mxfp8.dequantize_fp32(mxfp8.quantize(random_weight(rows, columns, seed)))
    assert torch.equal(mxfp8.dequantize_fp32(mxfp8.quantize(once)), once)


@pytest.mark.parametrize(("largest", "exponent"), [(448.0, 127), (448.1, 128), (224.0, 126), (1.0, 119), (0.0, 0)])
def test_an_exponent_is_the_least_that_fits(largest: float, exponent: int) -> None:
    weight = torch.zeros(1, 32)
    weight[0, 3] = largest
    stored = mxfp8.quantize(weight)
    assert stored.block_scale[0, 0] == exponent
    assert mxfp8.dequantize_fp32(stored)[0, 3] == pytest.approx(largest, rel=2**-4)


def test_blocks_too_small_for_any_exponent_are_zero() -> None:
    weight = torch.zeros(1, 64)
    weight[0, 0], weight[0, 40] = 1e-37, 3e-36
    stored = mxfp8.quantize(weight)
    assert not stored.codes.float()[0, :32].any() and torch.isfinite(stored.codes.float()).all()
    assert stored.block_scale[0].tolist()[:2] == [0, 1]


def test_scales_of_the_dtype_named_after_them_are_the_same_scales() -> None:
    stored = mxfp8.quantize(normal_weight(40, 70))
    named = Mxfp8Weight(stored.codes, stored.block_scale.view(torch.float8_e8m0fnu), stored.shape)
    assert same(mxfp8.dequantize_fp32(named), mxfp8.dequantize_fp32(stored))


def test_quantising_a_normal_weight_costs_2_7_percent() -> None:
    weight = normal_weight(200, 176)
    assert 0.024 < relative_error(mxfp8.dequantize_fp32(mxfp8.quantize(weight)), weight) < 0.03


def test_slices_don_t_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal_weight(400, 96)
    stored = mxfp8.quantize(weight)
    whole = mxfp8.dequantize_fp32(stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", rows_of(130, 96))
    assert same(mxfp8.quantize(weight).codes, stored.codes) and same(mxfp8.dequantize_fp32(stored), whole)
