"""INT8 rows, rotated or not, against comfy-kitchen's eager backend bit for bit."""

import pytest
import torch
from comfy_kitchen.backends.eager import quantization as eager
from comfy_kitchen.tensor import QuantizedTensor
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import int8, slices
from h3runtime.quant.stored import Int8Weight
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

CONVROT = st.sampled_from([None, 4, 16, 64, 256])
FP32 = eager.DTYPE_TO_CODE[torch.float32]


def kitchen_quantize(weight: torch.Tensor, convrot: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    return eager.quantize_int8_convrot_weight(weight, convrot) if convrot else eager.quantize_int8_rowwise(weight)


def kitchen_dequantize(stored: Int8Weight, dtype: torch.dtype) -> torch.Tensor:
    code = eager.DTYPE_TO_CODE[dtype]
    if stored.convrot:
        return eager.dequantize_int8_convrot_weight_dtype(stored.codes, stored.scale, stored.convrot, code)
    return eager.dequantize_int8_simple_dtype(stored.codes, stored.scale, code)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 90), columns=st.integers(1, 3), convrot=CONVROT, seed=SEEDS, dtype=DTYPES)
def test_packing_equals_the_library_bit_for_bit(
    rows: int, columns: int, convrot: int | None, seed: int, dtype: torch.dtype
) -> None:
    weight = random_weight(rows, columns * (convrot or 17), seed, dtype)
    for ours, theirs in (
        (int8.quantize(weight, convrot), kitchen_quantize(weight.float(), convrot)),
        (int8.quantize_kitchen(weight, convrot), kitchen_quantize(weight, convrot)),
    ):
        assert same(ours.codes, theirs[0]) and same(ours.scale, theirs[1]) and ours.convrot == convrot
        assert ours.codes.shape == int8.packed_shape((rows, weight.shape[1]))
        assert ours.scale.shape == int8.scale_shape((rows, weight.shape[1]))


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 90), columns=st.integers(1, 3), convrot=CONVROT, seed=SEEDS, dtype=DTYPES)
def test_any_codes_dequantise_like_the_library(
    rows: int, columns: int, convrot: int | None, seed: int, dtype: torch.dtype
) -> None:
    """Also -128, which our packer never writes."""
    codes = random_bytes((rows, columns * (convrot or 17)), seed).view(torch.int8)
    stored = Int8Weight(codes, torch.rand(rows, 1, generator=generator(seed)) * 1e-2, convrot=convrot)
    assert same(int8.dequantize(stored, dtype), kitchen_dequantize(stored, dtype))
    assert same(int8.dequantize(stored, dtype), int8.dequantize_fp32(stored).to(dtype))


def test_the_library_s_tensor_class_agrees() -> None:
    weight = normal_weight(70, 512)
    theirs = QuantizedTensor.from_float(
        weight, "TensorWiseINT8Layout", per_channel=True, convrot=True, convrot_groupsize=256
    )
    ours = int8.quantize(weight, 256)
    assert same(ours.codes, theirs._qdata) and same(int8.dequantize_fp32(ours), theirs.dequantize())


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 60), convrot=CONVROT, seed=SEEDS)
def test_looked_up_rows_equal_the_library(rows: int, convrot: int | None, seed: int) -> None:
    table = int8.quantize(random_weight(rows, 2 * (convrot or 40), seed), convrot)
    ids = torch.randint(0, rows, (2, 7), generator=generator(seed))
    theirs = eager.dequantize_int8_embedding(table.codes, table.scale, ids, convrot or 0, FP32)
    assert same(int8.dequantize_rows(table, ids), theirs)
    torch.testing.assert_close(theirs, int8.dequantize_fp32(table)[ids], rtol=0, atol=1e-6 * float(theirs.abs().max()))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 60), columns=st.integers(1, 80), seed=SEEDS)
def test_an_error_is_at_most_half_a_step(rows: int, columns: int, seed: int) -> None:
    weight = random_weight(rows, columns, seed)
    table = int8.quantize(weight)
    assert ((int8.dequantize_fp32(table) - weight).abs() <= table.scale * 0.5001).all()


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 60), groups=st.integers(1, 3), convrot=st.sampled_from([16, 64, 256]), seed=SEEDS)
def test_a_rotation_spreads_an_error_without_making_it_larger(rows: int, groups: int, convrot: int, seed: int) -> None:
    """Half a step per code before the rotation is at most half a step per code in L2 after it, row by row."""
    weight = random_weight(rows, groups * convrot, seed)
    table = int8.quantize(weight, convrot)
    error = (int8.dequantize_fp32(table) - weight).norm(dim=1)
    assert (error <= table.scale[:, 0] * 0.501 * (groups * convrot) ** 0.5).all()


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 60), convrot=CONVROT, seed=SEEDS)
def test_packing_what_was_unpacked_changes_nothing(rows: int, convrot: int | None, seed: int) -> None:
    once = int8.quantize(random_weight(rows, 2 * (convrot or 40), seed), convrot)
    twice = int8.quantize(int8.dequantize_fp32(once), convrot)
    assert torch.equal(once.codes, twice.codes)
    torch.testing.assert_close(once.scale, twice.scale, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("value", "code"), [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (126.6, 127)])
def test_halves_go_to_the_even_code(value: float, code: int) -> None:
    assert int8.quantize(torch.tensor([[127.0, value]])).codes[0, 1] == code


def test_a_rotated_normal_weight_costs_0_72_percent_and_a_wrong_rotation_shows() -> None:
    """sqrt(2 - 2 mean(diag)) of what stays of the rotation: 2 ** -4 a diagonal entry of H_256, 2 ** -1 one of H_4."""
    weight = normal_weight(200, 1024)
    stored = int8.quantize(weight, 256)
    assert 0.006 < relative_error(int8.dequantize_fp32(stored), weight) < 0.0085
    as_it_is = int8.dequantize_fp32(Int8Weight(stored.codes, stored.scale))
    assert relative_error(as_it_is, weight) == pytest.approx(1.369, rel=0.02)
    wrong_group = int8.dequantize_fp32(Int8Weight(stored.codes, stored.scale, convrot=64))
    assert relative_error(wrong_group, weight) == pytest.approx(1.0, rel=0.02)


def test_the_library_s_bf16_rotation_gives_other_codes_from_bf16() -> None:
    """The share of equal codes that the docstring of `quantize_kitchen` states."""
    weight = normal_weight(256, 1024).to(torch.bfloat16)
    ours, theirs = int8.quantize(weight, 256), int8.quantize_kitchen(weight, 256)
    assert 0.86 < float((ours.codes == theirs.codes).float().mean()) < 0.92


@pytest.mark.parametrize("convrot", [None, 64])
def test_a_zero_row_stays_zero(convrot: int | None) -> None:
    weight = normal_weight(3, 64)
    weight[1] = 0
    table = int8.quantize(weight, convrot)
    assert torch.equal(int8.dequantize_fp32(table)[1], torch.zeros(64))
    assert (table.scale > 0).all()


def test_a_group_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="divide"):
        int8.quantize(normal_weight(3, 2688), 256)


@pytest.mark.parametrize("convrot", [None, 64, 256])
def test_slices_don_t_show(convrot: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal_weight(1000, 768)
    stored = int8.quantize(weight, convrot)
    whole = int8.dequantize_fp32(stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", rows_of(300, 768))
    assert same(int8.quantize(weight, convrot).codes, stored.codes)
    assert same(int8.dequantize_fp32(stored), whole)
