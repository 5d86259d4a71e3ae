"""4- and 6-bit codes on an INT8 grid, against comfy-kitchen's eager backend bit for bit."""

from dataclasses import replace

import pytest
import torch
from comfy_kitchen.backends.eager import w4a8_int8 as eager
from comfy_kitchen.tensor.w4a8_packed import default_w4a8_codebook
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import asym_w4a8, slices
from h3runtime.quant.stored import AsymInt4Weight
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

ROWS = st.integers(1, 40)
ROTATIONS = st.sampled_from([16, 64, 256])
GROUPS = st.sampled_from([4, 8, 16, 32])
SCALES = st.sampled_from([torch.float8_e4m3fn, torch.float32])


def from_kitchen(weight: torch.Tensor, group: int, convrot: int, **options: object) -> AsymInt4Weight:
    codes, relative, channel, correction, codebook = eager.quantize_w4a8_int8_weight(weight, group, convrot, **options)
    return AsymInt4Weight(codes, relative, channel, codebook, correction, convrot, group=group)


def kitchen_dequantize(stored: AsymInt4Weight, dtype: torch.dtype) -> torch.Tensor:
    return eager.dequantize_w4a8_int8_weight(
        stored.codes,
        stored.relative_scale,
        stored.channel_scale,
        stored.codebook,
        stored.correction,
        stored.group,
        stored.convrot,
        dtype,
    )


@settings(max_examples=50, deadline=None)
@given(rows=ROWS, blocks=st.integers(1, 3), convrot=ROTATIONS, group=GROUPS, scale=SCALES, seed=SEEDS, dtype=DTYPES)
def test_packing_equals_the_library_bit_for_bit(
    rows: int, blocks: int, convrot: int, group: int, scale: torch.dtype, seed: int, dtype: torch.dtype
) -> None:
    weight = random_weight(rows, blocks * 256, seed, dtype)
    ours = asym_w4a8.quantize(weight, convrot, group, scale_dtype=scale)
    theirs = from_kitchen(weight.float(), group, convrot, scale_dtype=scale, codebook_tensor=ours.codebook)
    assert same(ours.codes, theirs.codes) and same(ours.channel_scale, theirs.channel_scale)
    assert same(ours.relative_scale, theirs.relative_scale)
    assert ours.codebook is not None and theirs.codebook is not None and same(ours.codebook, theirs.codebook)
    assert ours.shape == (rows, blocks * 256) and ours.correction is theirs.correction is None
    assert ours.codes.shape == asym_w4a8.packed_shape(ours.shape)
    assert ours.relative_scale.shape == asym_w4a8.relative_scale_shape(ours.shape, group)
    assert ours.channel_scale.shape == asym_w4a8.channel_scale_shape(ours.shape)


def test_the_codebook_is_the_library_s_and_chosen_for_a_normal_weight() -> None:
    ours = asym_w4a8.quantize(normal_weight(64, 512))
    assert ours.codebook is not None and same(ours.codebook, default_w4a8_codebook())
    assert same(from_kitchen(normal_weight(64, 512), 16, 256).codes, ours.codes)


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    convrot=ROTATIONS,
    group=GROUPS,
    seed=SEEDS,
    dtype=DTYPES,
    kind=st.sampled_from(["codebook", "even", "correction", "6 bits"]),
)
def test_every_variant_dequantises_like_the_library(
    rows: int, convrot: int, group: int, seed: int, dtype: torch.dtype, kind: str
) -> None:
    options: dict[str, object] = {
        "codebook": {"codebook_tensor": torch.randn(16, generator=generator(seed)).sort().values},
        "even": {"codebook": False},
        "correction": {"symmetric": False},
        "6 bits": {"bits": 6},
    }[kind]
    stored = from_kitchen(
        random_weight(rows, 256, seed, dtype), max(group, 16 if kind == "6 bits" else 4), convrot, **options
    )
    assert stored.shape == (rows, 256)
    assert stored.codes.shape == asym_w4a8.packed_shape(stored.shape, 6 if kind == "6 bits" else 4)
    assert torch.equal(asym_w4a8.dequantize_fp32(stored), kitchen_dequantize(stored, torch.float32))
    assert torch.equal(asym_w4a8.dequantize_kitchen(stored, dtype), kitchen_dequantize(stored, dtype))
    assert same(asym_w4a8.dequantize(stored, dtype), asym_w4a8.dequantize_fp32(stored).to(dtype))


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, convrot=ROTATIONS, seed=SEEDS, width=st.sampled_from([128, 192]))
def test_any_bytes_dequantise_like_the_library(rows: int, convrot: int, seed: int, width: int) -> None:
    relative = random_bytes((rows, 16), seed, 0, 127).view(torch.float8_e4m3fn)
    channel = torch.rand(rows, generator=generator(seed)) * 1e-3
    codes = random_bytes((rows, width), seed + 1).view(torch.int8)
    stored = AsymInt4Weight(codes, relative, channel, None, convrot=convrot)
    assert torch.equal(asym_w4a8.dequantize_fp32(stored), kitchen_dequantize(stored, torch.float32))
    grid = eager._dequant_int4_grouped_to_int8(codes, relative, None, 16)
    assert same(asym_w4a8.grid_rows(stored, slice(0, rows)), grid)


def test_scales_kept_as_raw_bytes_are_the_same_scales() -> None:
    stored = asym_w4a8.quantize(normal_weight(9, 256))
    raw = replace(stored, relative_scale=stored.relative_scale.view(torch.uint8))
    assert same(asym_w4a8.dequantize_fp32(raw), asym_w4a8.dequantize_fp32(stored))


def test_a_normal_weight_costs_7_percent_and_a_wrong_group_shows() -> None:
    weight = normal_weight(200, 1024)
    stored = asym_w4a8.quantize(weight)
    assert 0.06 < relative_error(asym_w4a8.dequantize_fp32(stored), weight) < 0.08
    assert 0.95 < relative_error(asym_w4a8.dequantize_fp32(replace(stored, convrot=64)), weight) < 1.05


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, convrot=ROTATIONS, seed=SEEDS)
def test_an_error_is_at_most_half_the_widest_gap(rows: int, convrot: int, seed: int) -> None:
    """Between two levels, and at the ends beyond them: a fitted scale may leave a group's largest outside."""
    weight = normal_weight(rows, 256, seed)
    stored = asym_w4a8.quantize(weight, convrot)
    error = (asym_w4a8.dequantize_fp32(stored) - weight).norm(dim=1)
    assert (error <= 0.12 * weight.norm(dim=1)).all()


def test_a_zero_row_stays_zero() -> None:
    weight = normal_weight(3, 256)
    weight[1] = 0
    assert torch.equal(asym_w4a8.dequantize_fp32(asym_w4a8.quantize(weight))[1], torch.zeros(256))


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 16"):
        asym_w4a8.quantize(normal_weight(3, 24), 4)
    with pytest.raises(ValueError, match="divide"):
        asym_w4a8.quantize(normal_weight(3, 64))


def test_slices_don_t_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal_weight(600, 768)
    stored = asym_w4a8.quantize(weight)
    whole = asym_w4a8.dequantize_fp32(stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", rows_of(200, 768))
    assert same(asym_w4a8.quantize(weight).codes, stored.codes)
    assert same(asym_w4a8.dequantize_fp32(stored), whole)
