"""INT8 products: exact in integers, and comfy-kitchen's own numbers."""

from __future__ import annotations

from dataclasses import replace

import comfy_kitchen
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.int8 import Int8Linear, Int8Rows, definition, product
from h3runtime.quant import int8, slices
from h3runtime.quant.stored import PlainWeight
from tests.backends.linears import CPU, activations, error, randn, wanted


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 300), st.integers(0, 2**31))
def test_sums_are_exact(rows: int, columns: int, width: int, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    a = torch.randint(-128, 128, (rows, width), dtype=torch.int8, generator=made)
    b = torch.randint(-128, 128, (columns, width), dtype=torch.int8, generator=made)
    assert torch.equal(product(a, b).long(), a.long() @ b.long().T)


@pytest.mark.parametrize("group", [None, 64, 256])
@pytest.mark.parametrize("rows", [1, 17, 129])
def test_fp32_activations_give_comfy_kitchen_s_numbers_bit_for_bit(group: int | None, rows: int) -> None:
    stored = replace(int8.quantize(randn(48, 256, seed=1), group), bias=randn(48, seed=2))
    x = activations(rows, outliers=True).float()
    theirs = comfy_kitchen.int8_linear(
        x,
        stored.codes,
        stored.scale,
        stored.bias,
        out_dtype=torch.float32,
        convrot=group is not None,
        convrot_groupsize=group or 256,
    )
    assert torch.equal(definition(x, stored), theirs)


def test_bf16_activations_are_divided_in_fp32() -> None:
    """The library's eager path divides in BF16, which costs as much again as rounding to 8 bits does."""
    stored, x = int8.quantize(randn(48, 256, seed=1), 256), activations(129)
    theirs = comfy_kitchen.int8_linear(x, stored.codes, stored.scale, convrot=True, out_dtype=torch.bfloat16)
    ours = Int8Linear().apply(x, stored)
    assert error(ours, wanted(x, stored)) < 0.009 < 0.2
    assert error(ours, wanted(x, stored)) < error(theirs, wanted(x, stored)) < 0.02


def test_slices_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, x = int8.quantize(randn(48, 256, seed=1), 256), activations(129)
    whole = definition(x, stored)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", 10 * 256)
    assert torch.equal(definition(x, stored), whole)


@pytest.mark.parametrize(("columns", "group"), [(256, 256), (192, 64), (48, 16), (12, 4), (10, None)])
def test_a_weight_is_encoded_over_the_largest_group(columns: int, group: int | None) -> None:
    made = Int8Linear().prepare(PlainWeight(randn(8, columns, seed=columns)), CPU)
    assert isinstance(made, Int8Rows) and made.weight.convrot == group


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (LinearFacts("cpu"), None),
        (LinearFacts("cuda", (7, 5), (12, 8)), None),
        (LinearFacts("cuda", (7, 0), (13, 0)), "needs SM 7.5 or newer, and this is SM 7.0"),
    ],
)
def test_where_it_runs(facts: LinearFacts, told: str | None) -> None:
    assert Int8Linear().why_not(facts) == told
