"""FP8 with a scale per tensor, against comfy-kitchen's eager backend bit for bit."""

import pytest
import torch
from comfy_kitchen.backends import eager
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import fp8, slices
from h3runtime.quant.stored import Fp8Weight
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

SIDES = st.integers(1, 120)
CODES = st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2])
HALF_STEP = {torch.float8_e4m3fn: (2**-4, 2**-10), torch.float8_e5m2: (2**-3, 2**-17)}
"""Of a normal code, relative, and of a subnormal one."""


@settings(max_examples=60, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=SEEDS, dtype=DTYPES, codes=CODES)
def test_packing_equals_the_library_bit_for_bit(
    rows: int, columns: int, seed: int, dtype: torch.dtype, codes: torch.dtype
) -> None:
    weight = random_weight(rows, columns, seed, dtype)
    ours = fp8.quantize(weight, codes)
    assert same(ours.codes, eager.quantize_per_tensor_fp8(weight.float(), ours.scale, codes))
    assert ours.codes.shape == fp8.packed_shape((rows, columns))
    assert ours.scale.shape == fp8.scale_shape((rows, columns)) and ours.scale.dtype is torch.float32
    assert ours.format in fp8.DTYPES and fp8.DTYPES[ours.format] is codes


@settings(max_examples=60, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=SEEDS, dtype=DTYPES, codes=CODES)
def test_any_finite_bytes_dequantise_like_the_library(
    rows: int, columns: int, seed: int, dtype: torch.dtype, codes: torch.dtype
) -> None:
    raw = random_bytes((rows, columns), seed, 0, 0x7C) | (random_bytes((rows, columns), seed + 1, 0, 2) << 7)
    stored = Fp8Weight(raw.view(codes), torch.rand(()) * 1e-2)
    assert same(fp8.dequantize_fp32(stored), eager.dequantize_per_tensor_fp8(stored.codes, stored.scale, torch.float32))
    assert same(
        fp8.dequantize_kitchen(stored, dtype), eager.dequantize_per_tensor_fp8(stored.codes, stored.scale, dtype)
    )
    assert same(fp8.dequantize(stored, dtype), fp8.dequantize_fp32(stored).to(dtype))


def test_one_cast_is_nearer_to_fp32_than_the_library_s_bf16() -> None:
    """Distances that the docstring of `dequantize_kitchen` states, over 20 weights of 64x256."""
    cast, library = [], []
    for seed in range(20):
        stored = fp8.quantize(normal_weight(64, 256, seed))
        exact = fp8.dequantize_fp32(stored)
        cast.append(relative_error(fp8.dequantize(stored, torch.bfloat16), exact))
        library.append(relative_error(fp8.dequantize_kitchen(stored, torch.bfloat16), exact))
    assert all(ours <= theirs for ours, theirs in zip(cast, library, strict=True))
    assert min(cast) > 1.0e-3 and max(cast) < 2.1e-3 and max(library) < 3.4e-3
    assert sum(cast) < 0.85 * sum(library)


@settings(max_examples=40, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=SEEDS, codes=CODES)
def test_an_error_is_at_most_half_a_step(rows: int, columns: int, seed: int, codes: torch.dtype) -> None:
    weight = random_weight(rows, columns, seed)
    stored = fp8.quantize(weight, codes)
    relative, absolute = HALF_STEP[codes]
    bound = torch.maximum(weight.abs() * relative, absolute * stored.scale) * 1.0001
    assert ((fp8.dequantize_fp32(stored) - weight).abs() <= bound).all()


@settings(max_examples=30, deadline=None)
@given(rows=SIDES, columns=SIDES, seed=SEEDS, codes=CODES)
def test_packing_what_was_unpacked_changes_nothing(rows: int, columns: int, seed: int, codes: torch.dtype) -> None:
    once = fp8.quantize(random_weight(rows, columns, seed), codes)
    assert torch.equal(
        fp8.dequantize_fp32(fp8.quantize(fp8.dequantize_fp32(once), codes, once.scale)), fp8.dequantize_fp32(once)
    )


@pytest.mark.parametrize("codes", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_stale_scale_saturates(codes: torch.dtype) -> None:
    stored = fp8.quantize(torch.tensor([[1e9, -1e9, 1.0]]), codes, torch.tensor(1.0))
    largest = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}[codes]
    assert stored.codes.float().tolist() == [[largest, -largest, 1.0]]


def test_a_zero_tensor_stays_zero() -> None:
    stored = fp8.quantize(torch.zeros(3, 5))
    assert stored.scale > 0 and torch.equal(fp8.dequantize_fp32(stored), torch.zeros(3, 5))


def test_codes_kept_as_plain_bytes_are_the_same_codes() -> None:
    stored = fp8.quantize(normal_weight(9, 7))
    assert same(fp8.view_codes(stored.codes.view(torch.uint8), "float8_e4m3fn"), stored.codes)


def test_slices_don_t_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal_weight(100, 96)
    stored = fp8.quantize(weight)
    whole = fp8.dequantize_fp32(stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", rows_of(7, 96))
    assert same(fp8.quantize(weight).codes, stored.codes) and same(fp8.dequantize_fp32(stored), whole)
