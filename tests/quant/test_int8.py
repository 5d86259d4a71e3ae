"""INT8 rows, against comfy-kitchen's embedding lookup bit for bit."""

import pytest
import torch
from comfy_kitchen.backends.eager import quantization as eager
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import int8


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 60), columns=st.integers(1, 80), seed=st.integers(0, 2**31))
def test_looked_up_rows_equal_the_library(rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = int8.quantize(torch.randn(rows, columns, generator=generator))
    ids = torch.randint(0, rows, (2, 7), generator=generator)
    fp32 = eager.DTYPE_TO_CODE[torch.float32]
    theirs = eager.dequantize_int8_embedding(table.codes, table.scale, ids, 0, fp32)
    assert torch.equal(int8.dequantize_rows(table, ids), theirs)
    assert torch.equal(int8.dequantize_rows(table, ids), int8.dequantize_fp32(table)[ids])


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 60), columns=st.integers(1, 80), seed=st.integers(0, 2**31))
def test_an_error_is_at_most_half_a_step(rows: int, columns: int, seed: int) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    table = int8.quantize(weight)
    assert table.codes.dtype is torch.int8 and table.scale.shape == (rows, 1)
    assert ((int8.dequantize_fp32(table) - weight).abs() <= table.scale * 0.5001).all()


def test_a_zero_row_stays_zero() -> None:
    table = int8.quantize(torch.zeros(3, 8))
    assert torch.equal(int8.dequantize_fp32(table), torch.zeros(3, 8))
    assert (table.scale > 0).all()


def test_a_non_finite_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="non-finite"):
        int8.quantize(torch.tensor([[float("inf")]]))
