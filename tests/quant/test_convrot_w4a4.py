"""Rotated signed 4-bit rows, against comfy-kitchen's eager backend bit for bit."""

import pytest
import torch
from comfy_kitchen.backends.eager import convrot_w4a4 as eager
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import convrot_w4a4, nibbles, slices
from h3runtime.quant.stored import ConvrotInt4Weight
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

GROUPS = st.sampled_from([4, 16, 64, 256])


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 90), blocks=st.integers(1, 3), convrot=GROUPS, seed=SEEDS, dtype=DTYPES)
def test_packing_equals_the_library_bit_for_bit(
    rows: int, blocks: int, convrot: int, seed: int, dtype: torch.dtype
) -> None:
    weight = random_weight(rows, blocks * 256, seed, dtype)
    ours = convrot_w4a4.quantize(weight, convrot)
    codes, scale = eager.quantize_convrot_w4a4_weight(weight.float(), convrot)
    assert same(ours.codes, codes) and same(ours.scale, scale) and ours.convrot == convrot
    assert ours.codes.shape == convrot_w4a4.packed_shape(ours.shape) and ours.shape == (rows, blocks * 256)
    assert ours.scale.shape == convrot_w4a4.scale_shape(ours.shape)


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 90), blocks=st.integers(1, 3), convrot=GROUPS, seed=SEEDS, dtype=DTYPES)
def test_any_bytes_dequantise_like_the_library(
    rows: int, blocks: int, convrot: int, seed: int, dtype: torch.dtype
) -> None:
    codes = random_bytes((rows, blocks * 128), seed).view(torch.int8)
    stored = ConvrotInt4Weight(codes, torch.rand(rows, generator=generator(seed)) * 1e-2, convrot)
    theirs = eager.dequantize_convrot_w4a4_weight(codes, stored.scale, convrot, output_dtype=dtype)
    assert same(convrot_w4a4.dequantize(stored, dtype), theirs)


def test_scales_stored_as_a_column_are_the_same_scales() -> None:
    stored = convrot_w4a4.quantize(normal_weight(5, 256))
    column = ConvrotInt4Weight(stored.codes, stored.scale.unsqueeze(1), stored.convrot)
    assert same(convrot_w4a4.dequantize_fp32(column), convrot_w4a4.dequantize_fp32(stored))


def test_the_even_column_is_the_low_nibble_in_two_s_complement() -> None:
    packed = nibbles.pack(torch.tensor([[1, -2, -8, 7]]) & 0xF)
    assert packed.view(torch.uint8).tolist() == [[0xE1, 0x78]]
    values = nibbles.signed_values(torch.device("cpu"), torch.float32)
    assert nibbles.lookup(packed, values).tolist() == [[1.0, -2.0, -8.0, 7.0]]


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 60), convrot=GROUPS, seed=SEEDS)
def test_packing_what_was_unpacked_changes_no_code(rows: int, convrot: int, seed: int) -> None:
    once = convrot_w4a4.quantize(random_weight(rows, 256, seed), convrot)
    assert same(convrot_w4a4.quantize(convrot_w4a4.dequantize_fp32(once), convrot).codes, once.codes)


def test_a_normal_weight_costs_13_percent_and_a_wrong_group_shows() -> None:
    weight = normal_weight(200, 1024)
    stored = convrot_w4a4.quantize(weight)
    assert 0.11 < relative_error(convrot_w4a4.dequantize_fp32(stored), weight) < 0.16
    wrong = ConvrotInt4Weight(stored.codes, stored.scale, 64)
    assert 0.95 < relative_error(convrot_w4a4.dequantize_fp32(wrong), weight) < 1.05


def test_a_zero_row_stays_zero() -> None:
    weight = normal_weight(3, 256)
    weight[1] = 0
    assert torch.equal(convrot_w4a4.dequantize_fp32(convrot_w4a4.quantize(weight))[1], torch.zeros(256))


@pytest.mark.parametrize(("columns", "convrot", "said"), [(96, 16, "multiple of 64"), (64, 256, "divide")])
def test_columns_that_do_not_fit_are_refused(columns: int, convrot: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        convrot_w4a4.quantize(normal_weight(3, columns), convrot)


def test_slices_don_t_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal_weight(1000, 768)
    stored = convrot_w4a4.quantize(weight)
    whole = convrot_w4a4.dequantize_fp32(stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", rows_of(300, 768))
    assert same(convrot_w4a4.quantize(weight).codes, stored.codes)
    assert same(convrot_w4a4.dequantize_fp32(stored), whole)
